// Turns the tokens of an engine into events with text and timings.

import type { Check, Checks } from "./api/params.js";
import type { ChatCompletionMessageParam } from "./api/types.js";
import { check, isObject, readParams, signal as signalCheck } from "./api/params.js";
import type {
  AnswerEnd,
  FinishReason,
  GeneratedToken,
  PromptImage,
  SamplingOptions,
  TokenRequest,
} from "./engine/request.js";
import { SAMPLING } from "./shared/sampling.js";
import type { Message } from "./text/chat_template.js";
import type { Decoder } from "./text/text_stream.js";
import { TextStream } from "./text/text_stream.js";

/** A message of a chat; its content may be a list of parts with pictures, if the model sees. */
export type ChatMessage = Message | ChatCompletionMessageParam;

/** The token ids of a chat, and its images. */
export interface Prompt {
  readonly ids: readonly number[];
  readonly images?: readonly PromptImage[];
  readonly prefix?: TokenRequest["prefix"];
}

export interface GenerateOptions
  extends
    SamplingOptions,
    Pick<TokenRequest, "maxTokens" | "priority" | "whenFull" | "signal" | "adapter" | "begun" | "onGenerated"> {
  /** Continue the text itself, without the chat template. */
  readonly raw?: boolean | undefined;
  /** The last message is the start of the answer. */
  readonly continueFinalMessage?: boolean | undefined;
}

/** The options of an answer in a session, which has its own messages. */
export type SessionGenerateOptions = Omit<GenerateOptions, "raw" | "continueFinalMessage">;

/** The token engine checks the ranges, because `generateTokens` needs the same checks. */
const GENERATE_OPTIONS: Checks = {
  maxTokens: "any",
  ...Object.fromEntries(Object.keys(SAMPLING).map((name) => [name, "any"])),
  logitBias: check("a Map from token ids to numbers", (value) => value instanceof Map),
  priority: "any",
  whenFull: check('"stop" or { keep: n }', (value) => value === "stop" || isObject(value)),
  signal: signalCheck,
  begun: "any",
  onGenerated: "any",
  adapter: "string",
  raw: "boolean",
  continueFinalMessage: "boolean",
} satisfies Record<Exclude<keyof GenerateOptions, keyof typeof SAMPLING>, Check>;

/** ``tokensPerSecond`` is measured from the first token on; null if there was only one token. */
export interface Timings {
  readonly promptTokens: number;
  /** The prompt tokens whose keys and values were cached. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
  readonly timeToFirstTokenMs: number;
  readonly tokensPerSecond: number | null;
}

/** The ``text`` of a token is "" while a character is incomplete. The remaining text comes with "done". */
export type GenerationEvent =
  | { readonly type: "token"; readonly text: string; readonly tokenId: number }
  | { readonly type: "done"; readonly text: string; readonly finishReason: FinishReason; readonly timings: Timings };

/** A "token" event for each token, then one "done" event. Throws what ``tokens`` throws. */
export async function* generationEvents(
  tokens: AsyncGenerator<GeneratedToken, AnswerEnd, undefined>,
  decoder: Decoder,
): AsyncGenerator<GenerationEvent, void, undefined> {
  const stream = new TextStream(decoder);
  const start = performance.now();
  let first: number | null = null;
  try {
    for (;;) {
      const { done, value } = await tokens.next();
      const now = performance.now();
      first ??= now;
      if (done === true) {
        const { finishReason, promptTokens, cachedTokens, completionTokens } = value;
        // Generating the stop token also took time.
        const later = finishReason === "stop" ? completionTokens : completionTokens - 1;
        const tokensPerSecond = later > 0 ? (later * 1000) / (now - first) : null;
        const timings = {
          promptTokens,
          cachedTokens,
          completionTokens,
          timeToFirstTokenMs: first - start,
          tokensPerSecond,
        };
        yield { type: "done", text: stream.finish(), finishReason, timings };
        return;
      }
      yield { type: "token", text: stream.feed(value.tokenId), tokenId: value.tokenId };
    }
  } finally {
    await tokens.return({ finishReason: "stop", promptTokens: 0, cachedTokens: 0, completionTokens: 0 });
  }
}

/** The options of `generate` as a request to the token engine. Throws RequestError for an unknown option. */
export function tokenRequest({ ids: promptIds, images, prefix }: Prompt, options: GenerateOptions): TokenRequest {
  const sampling = readParams(options, GENERATE_OPTIONS);
  const { maxTokens, priority, whenFull, signal, adapter, begun, onGenerated } = sampling;
  return { promptIds, images, prefix, maxTokens, priority, whenFull, signal, adapter, begun, onGenerated, sampling };
}
