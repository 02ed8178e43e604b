// The interface that the adapters for other libraries need: an object with chat.completions.create, such as an Engine,
// an engine in a worker, or a Hybrid.

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
  /** Of an engine of `journalled`. */
  readonly id?: string | undefined;
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

/** An engine that computes embeddings, or a `Hybrid` of two sides with one model. */
export interface EmbeddingSource {
  readonly embeddings: {
    create(params: EmbeddingCreateParams, options?: CallOptions): PromiseLike<CreateEmbeddingResponse>;
  };
}

/** A message, or a part of one, from a model that reasons before it answers. */
export interface Reasoning {
  readonly reasoning_content?: string | null;
}

/** The name of the model that answers. For a Hybrid, the name of the model on this device. */
export function modelName(source: object): string {
  const { info, near } = source as {
    readonly info?: { readonly model: string };
    readonly near?: { readonly info: { readonly model: string } | null };
  };
  return (info ?? near?.info)?.model ?? "nearfar";
}

/**
 * Chunks for a consumer that can only append. Throws Unavailable if a Hybrid withdraws text that was yielded before,
 * because the consumer would show the withdrawn text and the new answer together.
 */
export async function* appendOnly(
  chunks: AsyncIterable<ChatCompletionChunk>,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  let hasStarted = false;
  for await (const chunk of chunks) {
    const [choice] = chunk.choices;
    if (hasStarted && isWithdrawal(chunk)) {
      throw new Unavailable(
        "The other side restarted an answer whose start was streamed already; " +
          'request it without streaming, or set escalation.then to "continue" in the policy',
      );
    }
    hasStarted ||= choice !== undefined && hasContent(choice.delta);
    yield chunk;
  }
}

/** Whether this chunk restarts the answer and withdraws the text before it. */
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
