// One answer as text: a request's token ids flow in from the engine, pieces of text flow out with the tokens that they are made of.

import type { Completion, GeneratedToken, TokenRequest, TokenSource } from "../engine/request.js";
import type { Decoder } from "../text/text_stream.js";
import type { Reasoning, State } from "../text/reasoning.js";
import { ReasoningParser } from "../text/reasoning.js";
import { TextStream } from "../text/text_stream.js";
import { StopStrings } from "./stop_strings.js";

export interface Piece {
  /** Comes before ``text``. */
  readonly reasoning: string;
  readonly text: string;
  /** The tokens whose text is out with this piece, those of the reasoning too, each with where it starts in the answer. */
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
  /** Those up to the end of the reasoning, with the markers; null for a model that does not reason. */
  readonly reasoningTokens: number | null;
}

/** Where an answer begins, and how the model reasons. */
export interface AnswerStart {
  readonly state: State;
  readonly reasoning: Reasoning | null;
}

/**
 * Yields a piece for each token, an empty one while its text is held back. Throws what the source throws, but where ``interrupt`` is why: then the
 * answer ends as it is. Stop strings end the content only; by default all of the answer is content. The request's own signal must abort with ``interrupt``.
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
  const waiting: (PlacedToken & { readonly end: number })[] = [];
  let completionTokens = 0;
  let decoded = 0;
  let released = 0;
  const piece = (thought: string, text: string, isLast: boolean): Piece => {
    released += text.length;
    // Of the tokens around a stop string, those that have a character before it belong to the answer.
    const count = waiting.findIndex(({ start, end }) =>
      isLast ? stopStrings.stopped && start >= released : end > released,
    );
    return { reasoning: thought, text, tokens: waiting.splice(0, count < 0 ? waiting.length : count) };
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
        const [thought, content] = parser.feed(stream.finish(), null);
        yield piece(thought, stopStrings.feed(content) + stopStrings.finish(), true);
        if (value === null) return end("stop", completionTokens, null);
        return end(stopStrings.stopped ? "stop" : value.finishReason, value.completionTokens, value.cachedTokens);
      }
      completionTokens++;
      const text = stream.feed(value.tokenId);
      waiting.push({ ...value, start: decoded, end: (decoded += text.length) });
      const held = parser.held.length;
      const [thought, content] = parser.feed(text, value.tokenId);
      const unstopped = stopStrings.feed(content);
      // Characters that are neither held back nor content: reasoning, markers and the line breaks around them.
      released += held + text.length - parser.held.length - content.length;
      yield piece(thought, unstopped, stopStrings.stopped);
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
