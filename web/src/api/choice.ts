// Turns the token ids of one answer into pieces of text, each with its tokens.

import type { Completion, GeneratedToken, TokenRequest, TokenSource } from "../engine/request.js";
import type { Decoder } from "../text/text_stream.js";
import type { Reasoning, State } from "../text/reasoning.js";
import { ReasoningParser } from "../text/reasoning.js";
import { TextStream } from "../text/text_stream.js";
import { StopStrings } from "./stop_strings.js";

export interface Piece {
  /** Precedes ``text``. */
  readonly reasoning: string;
  readonly text: string;
  /** The tokens whose text is complete with this piece, including those of the reasoning. */
  readonly tokens: readonly AnswerToken[];
}

export interface AnswerToken extends GeneratedToken {
  /** Its offset in the answer's text, in characters. */
  readonly start: number;
}

export interface ChoiceEnd {
  readonly finishReason: Completion["finishReason"];
  readonly completionTokens: number;
  /** Null if the answer was stopped early, because the engine then does not report it. */
  readonly cachedTokens: number | null;
  /** The tokens up to the end of the reasoning, including the markers; null for a model that does not reason. */
  readonly reasoningTokens: number | null;
}

/** Where an answer begins, and how the model reasons. */
export interface AnswerStart {
  readonly state: State;
  readonly reasoning: Reasoning | null;
}

/**
 * Yields a piece for each token; the piece is empty while its text is held back. Throws what the source throws, except
 * after ``interrupt``, which ends the answer at this point. Stop strings apply to the content only; by default the
 * complete answer is content. The request's own signal must abort together with ``interrupt``.
 */
export async function* answerChoice(
  source: TokenSource,
  decoder: Decoder,
  request: TokenRequest,
  stops: readonly string[],
  interrupt?: AbortSignal,
  { state, reasoning }: AnswerStart = { state: "content", reasoning: null },
): AsyncGenerator<Piece, ChoiceEnd, undefined> {
  const stream = new TextStream(decoder);
  const stopStrings = new StopStrings(stops);
  const parser = new ReasoningParser(state, reasoning);
  const tokens = source.generateTokens(request);
  const pending: (AnswerToken & { readonly end: number })[] = [];
  let completionTokens = 0;
  let decoded = 0;
  let released = 0;
  const piece = (reasoningText: string, text: string, isLast: boolean): Piece => {
    released += text.length;
    // A token around a stop string belongs to the answer if at least one of its characters is before the stop string.
    const count = pending.findIndex(({ start, end }) =>
      isLast ? stopStrings.stopped && start >= released : end > released,
    );
    return { reasoning: reasoningText, text, tokens: pending.splice(0, count < 0 ? pending.length : count) };
  };
  const end = (finishReason: ChoiceEnd["finishReason"], count: number, cachedTokens: number | null): ChoiceEnd => {
    return { finishReason, completionTokens: count, cachedTokens, reasoningTokens: reasoning && parser.tokens };
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
        const [reasoningText, content] = parser.feed(stream.finish(), null);
        yield piece(reasoningText, stopStrings.feed(content) + stopStrings.finish(), true);
        if (value === null) return end("stop", completionTokens, null);
        return end(stopStrings.stopped ? "stop" : value.finishReason, value.completionTokens, value.cachedTokens);
      }
      completionTokens++;
      const text = stream.feed(value.tokenId);
      pending.push({ ...value, start: decoded, end: (decoded += text.length) });
      const held = parser.held.length;
      const [reasoningText, content] = parser.feed(text, value.tokenId);
      const visible = stopStrings.feed(content);
      // Count characters that are neither held back nor content: reasoning, its markers, and line breaks around them.
      released += held + text.length - parser.held.length - content.length;
      yield piece(reasoningText, visible, stopStrings.stopped);
      if (stopStrings.stopped) return end("stop", completionTokens, null);
    }
  } finally {
    await tokens.return({
      finishReason: "stop",
      promptTokens: request.promptIds.length,
      cachedTokens: 0,
      completionTokens,
    });
  }
}
