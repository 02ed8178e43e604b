// What the two sides of an answer have in common: a request without anything that is for the router alone flows in, chunks in OpenAI's form flow out.

import type { Given } from "../../api/params.js";
import type { ChatCompletionChunk, ChatCompletionCreateParamsBase } from "../../api/types.js";
import { textOf } from "./message_text.js";

/** A chat's parameters as a side gets them: no labels, no pin, one answer. */
export type PlainParams = Given<Omit<ChatCompletionCreateParamsBase, "n" | "signal" | "stream_options" | "messages">> &
  Pick<ChatCompletionCreateParamsBase, "messages">;

/** What stands of an answer that a side goes on from. */
export interface AnswerSoFar {
  readonly text: string;
  /** What stands before ``text``. */
  readonly reasoning?: string;
  /** The ids of the tokens whose texts are ``text``, where the side that wrote them told them. */
  readonly tokenIds: readonly number[] | null;
  /** The tokens of ``text``, as many as were counted. */
  readonly tokens: number;
}

export interface SideRequest {
  readonly params: PlainParams;
  /** Null for an answer from its start. */
  readonly from: AnswerSoFar | null;
  /** Log-probabilities are wanted, of each token's so many likeliest alternatives too; null for none. */
  readonly logprobs: number | null;
  readonly signal: AbortSignal;
}

export interface Side {
  /**
   * Chunks of choice 0, the last with a finish_reason, and perhaps one with usage after it. Asks nobody before it is iterated; leaving the loop ends the
   * answer. Throws NearfarError, or the signal's reason.
   */
  ask(request: SideRequest): AsyncIterable<ChatCompletionChunk>;
}

/** The answer's beginning that the client wrote; null if the answer is a message of its own. */
export function begunText({ messages, continue_final_message: continues }: PlainParams): string | null {
  const last = continues === true ? messages.at(-1) : undefined;
  return last === undefined ? null : textOf(last);
}

/** The parameters of a chat that goes on where ``from`` ends. */
export function goingOn({ params, from }: Pick<SideRequest, "params" | "from">): PlainParams {
  if (from === null) return params;
  const begun = begunText(params);
  const before = begun === null ? params.messages : params.messages.slice(0, -1);
  const last = begun === null ? undefined : params.messages.at(-1);
  return {
    ...params,
    messages: [
      ...before,
      {
        ...last,
        role: "assistant",
        content: (begun ?? "") + from.text,
        ...(from.reasoning && { reasoning_content: (last?.reasoning_content ?? "") + from.reasoning }),
      },
    ],
    continue_final_message: true,
    max_completion_tokens: undefined,
    ...limitAfter({ params, from }),
  };
}

/** The tokens that the answer may still have. */
export function limitAfter({ params, from }: Pick<SideRequest, "params" | "from">): Pick<PlainParams, "max_tokens"> {
  const limit = params.max_tokens ?? params.max_completion_tokens;
  return limit === undefined ? {} : { max_tokens: Math.max(1, limit - (from?.tokens ?? 0)) };
}
