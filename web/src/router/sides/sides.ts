// The interface of both sides: a request without the router's own parameters, and chunks in OpenAI's form.

import type { Given } from "../../api/params.js";
import type {
  ChatCompletionChunk,
  ChatCompletionCreateParamsBase,
  ChatCompletionMessageParam,
  RequestOptions,
} from "../../api/types.js";
import type { BegunAnswer, TokenRequest } from "../../engine/request.js";

/** A chat's parameters as a side gets them: without labels and pin, for one answer. */
export type PlainParams = Given<Omit<ChatCompletionCreateParamsBase, "n" | "signal" | "stream_options" | "messages">> &
  Pick<ChatCompletionCreateParamsBase, "messages"> & { readonly receipt?: boolean | undefined };

/** The part of an answer that a side continues. */
export interface AnswerSoFar {
  readonly text: string;
  /** The reasoning before ``text``. */
  readonly reasoning?: string;
  /** The ids of the tokens that make up ``text``, if the side that wrote them reported them. */
  readonly tokenIds: readonly number[] | null;
  /** The number of tokens of ``text`` that were counted. */
  readonly tokens: number;
  /** The number of chunks that have shown it. */
  readonly chunks: number;
}

/** The reason of a signal that aborts because the reader has left the answer. A stream that is recorded goes on then. */
export const LEFT = new Error("the reader has left");

/** A stream that our server keeps while its reader is away. */
export interface KeptStream {
  /** Of a stream that was begun before: it is sent from its start, or refused. */
  readonly key?: string;
  /** Receives the key of a new stream, once the server has accepted it. Its text follows when the promise is kept. */
  readonly onKey?: (key: string) => Promise<void>;
}

export interface SideRequest {
  readonly params: PlainParams;
  /** Null for an answer from its start. */
  readonly from: AnswerSoFar | null;
  /**
   * The number of likeliest alternatives to report with each token's log-probability; null for no log-probabilities.
   */
  readonly logprobs: number | null;
  readonly signal: AbortSignal;
  /** For near: nothing of the prompt is stored on this device. */
  readonly private?: boolean | undefined;
  /** For near: as in `TokenRequest`. */
  readonly begun?: BegunAnswer | undefined;
  readonly onGenerated?: TokenRequest["onGenerated"];
  /** Receives what the side is asked, as far as it leaves this page or reaches an engine. */
  readonly onSent?: ((body: object) => void) | undefined;
  /** For near: as in `RequestOptions`. */
  readonly onReceipt?: RequestOptions["onReceipt"];
  /** For far: the stream is recorded. */
  readonly kept?: KeptStream | undefined;
}

export interface Side {
  /**
   * Chunks of choice 0, the last with a finish_reason, and perhaps one with usage after it. It sends nothing before it
   * is iterated; leaving the loop ends the answer. Throws NearfarError, or the signal's reason.
   */
  answer(request: SideRequest): AsyncIterable<ChatCompletionChunk>;
}

/** The beginning of the answer that the client wrote; null if the answer is a new message. */
export function clientPrefix({ messages, continue_final_message: continues }: PlainParams): string | null {
  const last = continues === true ? messages.at(-1) : undefined;
  return last === undefined ? null : textOf(last);
}

/** The parameters of a request to a side: it continues after ``from``, and reports log-probabilities. */
export function sideParams(request: SideRequest): PlainParams {
  const { logprobs: count } = request;
  const params = continuedParams(request);
  return count === null ? params : { ...params, logprobs: true, ...(count > 0 && { top_logprobs: count }) };
}

function continuedParams({ params, from }: Pick<SideRequest, "params" | "from">): PlainParams {
  if (from === null) return params;
  const prefix = clientPrefix(params);
  const before = prefix === null ? params.messages : params.messages.slice(0, -1);
  const last = prefix === null ? undefined : params.messages.at(-1);
  return {
    ...params,
    messages: [
      ...before,
      {
        ...last,
        role: "assistant",
        content: (prefix ?? "") + from.text,
        ...(from.reasoning && { reasoning_content: (last?.reasoning_content ?? "") + from.reasoning }),
      },
    ],
    continue_final_message: true,
    max_completion_tokens: undefined,
    ...remainingLimit({ params, from }),
  };
}

/** The limit of tokens that remain for the answer. */
export function remainingLimit({
  params,
  from,
}: Pick<SideRequest, "params" | "from">): Pick<PlainParams, "max_tokens"> {
  const limit = params.max_tokens ?? params.max_completion_tokens;
  return limit === undefined ? {} : { max_tokens: Math.max(1, limit - (from?.tokens ?? 0)) };
}

// The text of a message, for decisions, for private patterns, and for answers that continue it.

/** The complete text of a message, with its parts joined as our engines join them. */
export function textOf(message: ChatCompletionMessageParam): string {
  return typeof message.content === "string" ? message.content : partsOf(message).join("");
}

/** The texts of a message's parts, "" for parts that are not text. */
function partsOf({ content }: ChatCompletionMessageParam): readonly string[] {
  return Array.isArray(content)
    ? content.map((part: { readonly text?: unknown } | null) => (typeof part?.text === "string" ? part.text : ""))
    : [];
}
