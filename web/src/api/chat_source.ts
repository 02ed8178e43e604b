// What the adapters for other libraries need of an engine: anything with chat.completions.create, such as an Engine, an engine in a worker or a Hybrid.

import { Unavailable } from "../errors.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  CreateEmbeddingResponse,
  EmbeddingCreateParams,
} from "./types.js";

interface CallOptions {
  readonly signal?: AbortSignal | null | undefined;
}

/** An engine that answers chats: an `Engine`, what `connectEngine` returns, or a `Hybrid`. */
export interface ChatSource {
  readonly chat: {
    readonly completions: {
      create(params: ChatCompletionCreateParamsNonStreaming, options?: CallOptions): PromiseLike<ChatCompletion>;
      create(
        params: ChatCompletionCreateParamsStreaming,
        options?: CallOptions,
      ): PromiseLike<AsyncIterable<ChatCompletionChunk>>;
    };
  };
}

/** An engine that computes embeddings. */
export interface EmbeddingSource {
  readonly embeddings: {
    create(params: EmbeddingCreateParams, options?: CallOptions): PromiseLike<CreateEmbeddingResponse>;
  };
}

/** A streamed or whole message of a model that thinks before it answers. */
export interface Reasoning {
  readonly reasoning_content?: string | null;
}

/** The name of the model that answers; of a Hybrid, of the one on this device. */
export function modelName(source: object): string {
  const { info, near } = source as {
    readonly info?: { readonly model: string };
    readonly near?: { readonly info: { readonly model: string } | null };
  };
  return (info ?? near?.info)?.model ?? "nearfar";
}

/**
 * Chunks for a consumer that can only append. Throws Unavailable if a Hybrid withdraws text that was yielded before, because the consumer would show
 * the withdrawn text and the new answer as one.
 */
export async function* appendOnly(
  chunks: AsyncIterable<ChatCompletionChunk>,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  let isBegun = false;
  for await (const chunk of chunks) {
    const [choice] = chunk.choices;
    if (isBegun && isWithdrawal(chunk)) {
      throw new Unavailable(
        'The other side restarted an answer whose first part was streamed already; ask without streaming, or use escalation.then "continue" in the policy',
      );
    }
    isBegun ||= choice !== undefined && hasContent(choice.delta);
    yield chunk;
  }
}

/** Whether this chunk begins the answer anew, so that the text before it no longer counts. */
export function isWithdrawal({ choices, route }: ChatCompletionChunk): boolean {
  return route?.switched_at === 0 && choices[0]?.finish_reason === null;
}

function hasContent({
  content,
  tool_calls,
  reasoning_content,
}: ChatCompletionChunk["choices"][number]["delta"] & Reasoning): boolean {
  return (content ?? "") !== "" || (reasoning_content ?? "") !== "" || tool_calls !== undefined;
}
