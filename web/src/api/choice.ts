// Turns the token ids of one answer into pieces of text, each with its tokens.

import type { TextCodec } from "./model.js";
import { promptOnly } from "./prompt_tokens.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { Reasoning, State } from "../text/reasoning.js";
import { ReasoningParser } from "../text/reasoning.js";
import { TextStream } from "../text/text_stream.js";
import { cutParts, splitText } from "../text/token_bytes.js";

export interface Piece {
  /** Precedes ``text``. */
  readonly reasoning: string;
  readonly text: string;
  /** The tokens whose text is complete with this piece, including those of the reasoning. */
  readonly tokens: readonly AnswerToken[];
  /** All tokens since the last piece; the last piece has the token that ended the answer. */
  readonly ids: readonly number[];
  /** The prompt's tokens with their log-probabilities, in the first piece, if they were requested. */
  readonly prompt?: readonly GeneratedToken[] | undefined;
}

export interface AnswerToken extends GeneratedToken {
  /** The offset of its text in the answer, in characters (code points). */
  readonly offset: number;
  /** Its part of the pieces' texts. */
  readonly content: Uint8Array;
}

export interface ChoiceEnd {
  readonly finishReason: AnswerEnd["finishReason"];
  readonly completionTokens: number;
  /** Null if the answer was stopped early, because the engine then does not report it. */
  readonly cachedTokens: number | null;
  /** The tokens up to the end of the reasoning, including the markers; null for a model that does not reason. */
  readonly reasoningTokens: number | null;
  /** Drafts that were checked, and those that were right; missing if none was checked. */
  readonly draftedTokens?: number | undefined;
  readonly acceptedTokens?: number | undefined;
  /** The steps of the model, and the token that ended the answer, if the engine reports them. */
  readonly passes?: number | undefined;
  readonly endToken?: GeneratedToken | undefined;
}

/** Where an answer begins, and how the model reasons. */
export interface AnswerStart {
  readonly state: State;
  readonly reasoning: Reasoning | null;
}

/** How the tokens of an answer become text. */
export interface AnswerText {
  /** They end the content only. */
  readonly stops: readonly string[];
  readonly includeStop: boolean;
  readonly skipSpecialTokens: boolean;
  /** By default the complete answer is content. */
  readonly begins?: AnswerStart;
  /** Whether the token that ended the answer is listed with the others. */
  readonly listsEnd?: boolean;
  /** Whether the first piece has the prompt's log-probabilities, if the request wants them. */
  readonly listsPrompt?: boolean;
}

/**
 * Yields a piece for each token; the piece is empty while its text is held back. Throws what the source throws, except
 * after ``interrupt``, which ends the answer at this point; and RequestError if the source has no log-probabilities of
 * the prompt. The request's own signal must abort together with ``interrupt``.
 */
export async function* answerChoice(
  source: TokenSource,
  codec: TextCodec,
  request: TokenRequest,
  form: AnswerText,
  interrupt?: AbortSignal,
): AsyncGenerator<Piece, ChoiceEnd, undefined> {
  const { state, reasoning } = form.begins ?? { state: "content", reasoning: null };
  const stream = new TextStream(codec, form.skipSpecialTokens);
  const stopStrings = new StopStrings(form.stops, form.includeStop);
  const parser = new ReasoningParser(state, reasoning);
  const spans = new TokenSpans(codec, form.skipSpecialTokens, request.logprobs !== undefined);
  const prompt = new PromptTokens(request, form.listsPrompt === true && (request.promptLogprobs ?? 0) > 0);
  const tokens = request.maxTokens === 0 ? promptOnly(source, prompt.request) : source.generateTokens(prompt.request);
  let completionTokens = 0;
  const stoppedEarly = (): ChoiceEnd => ({
    finishReason: "stop",
    completionTokens,
    cachedTokens: null,
    reasoningTokens: reasoning && parser.tokens,
  });
  const next = async (): Promise<IteratorResult<GeneratedToken, AnswerEnd | null>> => {
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
        const ended = value?.endToken;
        const text = (ended && form.includeStop ? stream.feed(ended.tokenId) : "") + stream.finish();
        spans.decode(text);
        const [reasoningText, content] = parser.feed(text, null);
        const visible = stopStrings.feed(content) + stopStrings.finish();
        const listed = spans.release(visible, { isLast: true, stopped: stopStrings.stopped });
        if (ended && form.listsEnd === true) listed.push(spans.after(ended));
        yield {
          reasoning: reasoningText,
          text: visible,
          tokens: listed,
          ids: ended ? [ended.tokenId] : [],
          ...(value && prompt.take()),
        };
        return { ...stoppedEarly(), ...value, ...(stopStrings.stopped && { finishReason: "stop" }) };
      }
      completionTokens++;
      const text = stream.feed(value.tokenId);
      spans.add(value);
      spans.decode(text);
      const held = parser.held.length;
      const [reasoningText, content] = parser.feed(text, value.tokenId);
      const visible = stopStrings.feed(content);
      // Characters that are neither held back nor content: reasoning, its markers, and line breaks around them.
      spans.skip(held + text.length - parser.held.length - content.length);
      const { stopped } = stopStrings;
      const listed = spans.release(visible, { isLast: stopped, stopped });
      yield { reasoning: reasoningText, text: visible, tokens: listed, ids: [value.tokenId], ...prompt.take() };
      if (stopped) return stoppedEarly();
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

/** The prompt's log-probabilities on their way to the first piece. */
class PromptTokens {
  readonly request: TokenRequest;
  #tokens: readonly GeneratedToken[] | null = null;
  #waits: boolean;

  constructor(request: TokenRequest, waits: boolean) {
    this.#waits = waits;
    const onPromptLogprobs = (tokens: readonly GeneratedToken[]): void => {
      this.#tokens = tokens;
      request.onPromptLogprobs?.(tokens);
    };
    this.request = waits ? { ...request, onPromptLogprobs } : request;
  }

  /** The field of the first piece. Throws RequestError. */
  take(): Pick<Piece, "prompt"> {
    if (!this.#waits) return {};
    this.#waits = false;
    if (this.#tokens === null) {
      throw new RequestError(
        "The log-probabilities of a prompt need a bundle that returns the logits of all its tokens, and this one's " +
          "are of the last token only; leave out prompt_logprobs, and echo with logprobs",
        { param: "prompt_logprobs" },
      );
    }
    return { prompt: this.#tokens };
  }
}

/** A token whose text starts at ``start`` of the decoded text. */
interface Span {
  readonly token: GeneratedToken;
  readonly start: number;
  readonly offset: number;
  /** The text of the run of tokens that write the same characters, and their parts; null until it is complete. */
  run: { readonly text: string; readonly parts: readonly Uint8Array[]; readonly index: number } | null;
}

/** The tokens whose text was not released yet. Positions in the decoded text are those of JavaScript's strings. */
class TokenSpans {
  #pending: Span[] = [];
  #decoded = 0;
  #offset = 0;
  #released = 0;
  /** Where the content starts in the decoded text. */
  #contentStart: number | null = null;

  constructor(
    private readonly codec: TextCodec,
    private readonly skipSpecialTokens: boolean,
    private readonly isListed: boolean,
  ) {}

  add(token: GeneratedToken): void {
    if (this.isListed) this.#pending.push({ token, start: this.#decoded, offset: this.#offset, run: null });
  }

  /** The pending tokens without a text have this one, if it is not empty. */
  decode(text: string): void {
    if (!this.isListed || text === "") return;
    const open = this.#pending.filter(({ run }) => run === null);
    const own = open.map(({ token }) => this.codec.writtenBytes(token.tokenId, this.skipSpecialTokens));
    const parts = splitText(text, own);
    for (const [index, span] of open.entries()) span.run = { text, parts, index };
    this.#decoded += text.length;
    this.#offset += Array.from(text).length;
  }

  /** ``length`` characters of the decoded text are not content. */
  skip(length: number): void {
    this.#released += length;
  }

  /** The tokens that end with the next ``text`` of the content. */
  release(text: string, { isLast, stopped }: { readonly isLast: boolean; readonly stopped: boolean }): AnswerToken[] {
    if (text !== "") this.#contentStart ??= this.#released;
    this.#released += text.length;
    const end = this.#released;
    const start = this.#contentStart ?? end;
    // A token around a stop string belongs to the answer if at least one of its characters is before the stop string.
    const count = this.#pending.findIndex((span) =>
      isLast ? stopped && span.start >= end : span.run === null || span.start + span.run.text.length > end,
    );
    return this.#pending
      .splice(0, count < 0 ? this.#pending.length : count)
      .map(({ token, offset, start: own, run }) => {
        const content = run && cutParts(run.text, run.parts, start - own, end - own)[run.index];
        return { ...token, offset, content: content ?? new Uint8Array() };
      });
  }

  /** A token after all others, without text. */
  after(token: GeneratedToken): AnswerToken {
    return { ...token, offset: this.#offset, content: new Uint8Array() };
  }
}

/** Ends an answer before its first stop string, or after it. Text that may be the start of one is held back. */
export class StopStrings {
  #held = "";
  #stopped = false;

  constructor(
    private readonly stops: readonly string[],
    private readonly include = false,
  ) {}

  /** Whether a stop string was found. No text is returned after it. */
  get stopped(): boolean {
    return this.#stopped;
  }

  /** Returns the text that can no longer be part of a stop string. */
  feed(text: string): string {
    if (this.#stopped) return "";
    const all = this.#held + text;
    const stop = firstStop(all, this.stops);
    this.#stopped = stop !== null;
    const end =
      stop?.[this.include ? "end" : "start"] ??
      all.length - Math.max(0, ...this.stops.map((stop) => overlap(all, stop)));
    this.#held = this.#stopped ? "" : all.slice(end);
    return all.slice(0, end);
  }

  /** Returns the text that is still held back. Call it at the end of the answer. */
  finish(): string {
    const held = this.#held;
    this.#held = "";
    return held;
  }
}

/**
 * Where the stop string is that is complete first, and of those the longest. The result does not depend on how the
 * text is divided into tokens.
 */
function firstStop(text: string, stops: readonly string[]): { readonly start: number; readonly end: number } | null {
  const matches = stops
    .map((stop) => ({ start: text.indexOf(stop), length: stop.length }))
    .filter(({ start }) => start >= 0);
  const end = Math.min(...matches.map(({ start, length }) => start + length));
  const first = matches.filter(({ start, length }) => start + length === end).map(({ start }) => start);
  return first.length === 0 ? null : { start: Math.min(...first), end };
}

/** The length of the longest suffix of ``text`` that is a proper prefix of ``stop``. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (stop.startsWith(text.slice(-length))) return length;
  }
  return 0;
}
