// Drafts of the near model: how it would continue the tokens so far, and, while the far side checks that, how it would
// continue its own guesses. Each draft is a request to the near engine for a few tokens; the next one finds its pages
// in the cache.

import type { TokenRequest, TokenSource } from "../../engine/request.js";
import { seedAfter } from "../../engine/resolved_sampling.js";
import type { NearfarError } from "../../errors.js";
import { isNearfarError } from "../../errors.js";

/** An engine on this device: `Engine` is one. */
export interface NearTokens extends TokenSource {
  readonly info: { readonly context: number };
}

/** Guesses that are being made: ``first`` resolves with the first of them, ``done`` with the last; neither rejects. */
interface Ahead {
  readonly tokens: number[];
  readonly first: Promise<void>;
  readonly done: Promise<void>;
  readonly controller: AbortController;
}

/**
 * The drafts of one answer, at most ``maxGuesses`` at a time. If the near engine fails, there are no more guesses,
 * because the answer does not need them.
 */
export class NearDrafts {
  readonly #tokens: number[];
  #drafts: number[] = [];
  /** The guesses after the drafts. */
  #ahead: Ahead | null = null;
  #failure: NearfarError | null = null;

  constructor(
    private readonly near: NearTokens,
    private readonly request: TokenRequest,
    private readonly maxGuesses: number,
  ) {
    this.#tokens = [...request.promptIds];
  }

  /** Why the near engine guesses nothing more; null if it has not failed. */
  get failure(): NearfarError | null {
    return this.#failure;
  }

  /** Guesses at the next tokens; none if the near model has ended its answer or its context is full. */
  async next(): Promise<readonly number[]> {
    if (this.#drafts.length === 0) this.#ahead ??= this.#draft(this.maxGuesses);
    const ahead = this.#ahead;
    if (ahead !== null) {
      await ahead.done;
      this.#ahead = null;
      this.#drafts.push(...ahead.tokens);
    }
    return this.#drafts.slice(0, this.maxGuesses);
  }

  /** Guess what follows the guesses: one token that the far side will add, and the drafts of the next round. */
  draftAhead(): void {
    if (this.#drafts.length > 0) this.#ahead ??= this.#draft(this.maxGuesses + 1);
  }

  /** Accept these tokens in place of the guesses. Guesses made ahead are kept if they agree. */
  async accept(tokenIds: readonly number[]): Promise<void> {
    const ahead = this.#ahead;
    const guesses = this.#drafts;
    this.#drafts = [];
    if (ahead !== null) {
      // Whether the token after the guesses was predicted is known with the first guess made ahead.
      if (same(tokenIds.slice(0, -1), guesses)) await ahead.first;
      if (same(tokenIds, [...guesses, ...ahead.tokens.slice(0, 1)]) && tokenIds.length > guesses.length)
        ahead.tokens.shift();
      else await this.close();
    }
    this.#tokens.push(...tokenIds);
  }

  /** Cancel the guesses that are being made. */
  async close(): Promise<void> {
    const ahead = this.#ahead;
    this.#ahead = null;
    ahead?.controller.abort();
    await ahead?.done;
  }

  #draft(count: number): Ahead {
    const controller = new AbortController();
    const tokens: number[] = [];
    let started: () => void = () => undefined;
    const first = new Promise<void>((resolve) => (started = resolve));
    const done = this.#fill(count, [...this.#tokens, ...this.#drafts], tokens, started, controller.signal).finally(
      started,
    );
    return { tokens, first, done, controller };
  }

  /** Guess ``count`` tokens after ``promptIds``. */
  async #fill(
    count: number,
    promptIds: readonly number[],
    into: number[],
    started: () => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { maxTokens = Infinity, sampling: { seed, ...sampling } = {}, promptIds: prompt } = this.request;
    const answered = promptIds.length - prompt.length;
    // The last token of the answer needs no guess.
    const limit = Math.min(count, this.near.info.context - promptIds.length, maxTokens - answered - 1);
    if (limit <= 0 || this.#failure !== null) return;
    try {
      // To the engine each draft is an answer of its own, but far samples these tokens with later random numbers of one
      // answer.
      const drawn = seed === undefined ? sampling : { ...sampling, seed: seedAfter(seed, answered) };
      for await (const { tokenId } of this.near.generateTokens({
        promptIds,
        maxTokens: limit,
        sampling: drawn,
        signal,
      })) {
        into.push(tokenId);
        started();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!isNearfarError(error)) throw error;
      this.#failure = error;
    }
  }
}

function same(first: readonly number[], second: readonly number[]): boolean {
  return first.length === second.length && first.every((token, index) => token === second[index]);
}
