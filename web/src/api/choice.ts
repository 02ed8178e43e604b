// One answer as text: a request's token ids flow in from the engine, pieces of text flow out with the tokens that they are made of.

import type { Completion, GeneratedToken, TokenRequest, TokenSource } from "../engine/request.js";
import type { Decoder } from "../text/text_stream.js";
import { TextStream } from "../text/text_stream.js";
import { StopStrings } from "./stop_strings.js";

export interface Piece {
  readonly text: string;
  /** The tokens whose text is out with this piece, each with where it starts in the answer. */
  readonly tokens: readonly PlacedToken[];
}

export interface PlacedToken extends GeneratedToken {
  readonly start: number;
}

export interface ChoiceEnd {
  readonly finishReason: Completion["finishReason"];
  readonly completionTokens: number;
  /** Null where the answer was cut short, so that the engine did not say. */
  readonly cachedTokens: number | null;
}

/**
 * Yields a piece for each token, an empty one while its text is held back. Throws what the source throws, but where ``interrupt`` is why: then the
 * answer ends as it is. The request's own signal must abort with ``interrupt``.
 */
export async function* answerChoice(
  source: TokenSource,
  decoder: Decoder,
  request: TokenRequest,
  stops: readonly string[],
  interrupt?: AbortSignal,
): AsyncGenerator<Piece, ChoiceEnd, undefined> {
  const stream = new TextStream(decoder);
  const stopStrings = new StopStrings(stops);
  const tokens = source.generateTokens(request);
  const waiting: (PlacedToken & { readonly end: number })[] = [];
  let completionTokens = 0;
  let decoded = 0;
  let released = 0;
  const piece = (text: string, isLast: boolean): Piece => {
    released += text.length;
    // Of the tokens around a stop string, those that have a character before it belong to the answer.
    const count = waiting.findIndex(({ start, end }) => (isLast ? stopStrings.stopped && start >= released : end > released));
    return { text, tokens: waiting.splice(0, count < 0 ? waiting.length : count) };
  };
  const next = async (): Promise<IteratorResult<GeneratedToken, Completion | null>> => {
    try {
      return await tokens.next();
    } catch (error) {
      if (interrupt?.aborted === true) return { done: true, value: null };
      throw error;
    }
  };
  try {
    for (;;) {
      const { done, value } = await next();
      if (done === true) {
        yield piece(stopStrings.feed(stream.finish()) + stopStrings.finish(), true);
        if (value === null) return { finishReason: "stop", completionTokens, cachedTokens: null };
        const { cachedTokens } = value;
        return { finishReason: stopStrings.stopped ? "stop" : value.finishReason, completionTokens: value.completionTokens, cachedTokens };
      }
      completionTokens++;
      const text = stream.feed(value.tokenId);
      waiting.push({ ...value, start: decoded, end: (decoded += text.length) });
      yield piece(stopStrings.feed(text), stopStrings.stopped);
      if (stopStrings.stopped) return { finishReason: "stop", completionTokens, cachedTokens: null };
    }
  } finally {
    await tokens.return({ finishReason: "stop", promptTokens: request.promptIds.length, cachedTokens: 0, completionTokens });
  }
}
