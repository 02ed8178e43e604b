// Answers as events: an engine's tokens flow in, text and timings flow out.

import { readParams } from "./api/params.js";
import type { Completion, FinishReason, GeneratedToken, SamplingOptions, TokenRequest } from "./engine/request.js";
import { GENERATE_OPTIONS } from "./options.js";
import type { Decoder } from "./text/text_stream.js";
import { TextStream } from "./text/text_stream.js";

export interface GenerateOptions
  extends SamplingOptions, Pick<TokenRequest, "maxTokens" | "priority" | "whenFull" | "signal"> {
  /** Continue the text itself, without the chat template. */
  readonly raw?: boolean | undefined;
}

/** tokensPerSecond counts from the first token on; null where there was only one. */
export interface Timings {
  readonly promptTokens: number;
  /** Of these, those whose keys and values were there already. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
  readonly timeToFirstTokenMs: number;
  readonly tokensPerSecond: number | null;
}

/** A token's ``text`` is "" while a character is incomplete; what is left at the end comes with "done". */
export type GenerationEvent =
  | { readonly type: "token"; readonly text: string; readonly tokenId: number }
  | { readonly type: "done"; readonly text: string; readonly finishReason: FinishReason; readonly timings: Timings };

/** A "token" for each token, and one "done". Throws what ``tokens`` throws. */
export async function* generationEvents(
  tokens: AsyncGenerator<GeneratedToken, Completion, undefined>,
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
        // A stop token took its time as well.
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

/** What `generate` takes, as the token engine takes it. Throws RequestError for an option that there is not. */
export function tokenRequest(promptIds: readonly number[], options: GenerateOptions): TokenRequest {
  const given = readParams(options, GENERATE_OPTIONS);
  const { maxTokens, priority, whenFull, signal } = given;
  return { promptIds, maxTokens, priority, whenFull, signal, sampling: given };
}
