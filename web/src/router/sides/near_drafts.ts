// Drafts of the near model: what it would say behind the tokens so far, and, while the far side checks that, behind its own guesses. Tokens that hold flow
// in, guesses flow out. Each guess is a request to the near engine for a few tokens, whose pages the next one finds.

import type { TokenRequest, TokenSource } from "../../engine/request.js";
import { seedAfter } from "../../engine/resolved_sampling.js";
import type { NearfarError } from "../../errors.js";
import { isNearfarError } from "../../errors.js";

/** An engine on this device: `Engine` is one. */
export interface NearTokens extends TokenSource {
  readonly info: { readonly context: number };
}

/** Guesses that are being made: ``first`` is settled with the first of them, ``done`` with the last; neither is rejected. */
interface Ahead {
  readonly tokens: number[];
  readonly first: Promise<void>;
  readonly done: Promise<void>;
  readonly controller: AbortController;
}

/** Of one answer. At most ``most`` guesses at a time. A near engine that fails guesses nothing more, for the answer does not need it. */
export class NearDrafts {
  readonly #tokens: number[];
  #drafts: number[] = [];
  /** Of what follows the drafts. */
  #ahead: Ahead | null = null;
  #failure: NearfarError | null = null;

  constructor(
    private readonly near: NearTokens,
    private readonly request: TokenRequest,
    private readonly most: number,
  ) {
    this.#tokens = [...request.promptIds];
  }

  /** Why the near engine guesses nothing more; null where it does. */
  get failure(): NearfarError | null {
    return this.#failure;
  }

  /** Guesses at the next tokens, none where the near model says nothing more or its context is full. */
  async next(): Promise<readonly number[]> {
    if (this.#drafts.length === 0) this.#ahead ??= this.make(this.most);
    const ahead = this.#ahead;
    if (ahead !== null) {
      await ahead.done;
      this.#ahead = null;
      this.#drafts.push(...ahead.tokens);
    }
    return this.#drafts.slice(0, this.most);
  }

  /** Guess what follows the guesses: one token that the far side will say by itself, and the drafts of the next round. */
  goOn(): void {
    if (this.#drafts.length > 0) this.#ahead ??= this.make(this.most + 1);
  }

  /** These hold, in the place of the guesses. What was guessed ahead is kept where it agrees. */
  async learn(tokenIds: readonly number[]): Promise<void> {
    const ahead = this.#ahead;
    const held = this.#drafts;
    this.#drafts = [];
    if (ahead !== null) {
      // Whether the token behind the guesses was foreseen is known with the first one that was guessed ahead.
      if (same(tokenIds.slice(0, -1), held)) await ahead.first;
      if (same(tokenIds, [...held, ...ahead.tokens.slice(0, 1)]) && tokenIds.length > held.length) ahead.tokens.shift();
      else await this.close();
    }
    this.#tokens.push(...tokenIds);
  }

  /** Leave what is being made. */
  async close(): Promise<void> {
    const ahead = this.#ahead;
    this.#ahead = null;
    ahead?.controller.abort();
    await ahead?.done;
  }

  private make(count: number): Ahead {
    const controller = new AbortController();
    const tokens: number[] = [];
    let started: () => void = () => undefined;
    const first = new Promise<void>((resolve) => (started = resolve));
    const done = this.fill(count, [...this.#tokens, ...this.#drafts], tokens, started, controller.signal).finally(
      started,
    );
    return { tokens, first, done, controller };
  }

  /** Guess ``count`` tokens behind ``promptIds``. */
  private async fill(
    count: number,
    promptIds: readonly number[],
    into: number[],
    started: () => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { maxTokens = Infinity, sampling: { seed, ...sampling } = {}, promptIds: prompt } = this.request;
    const answered = promptIds.length - prompt.length;
    // The last token of all comes without a guess.
    const most = Math.min(count, this.near.info.context - promptIds.length, maxTokens - answered - 1);
    if (most <= 0 || this.#failure !== null) return;
    try {
      // To the engine each guess is an answer of its own, and far draws these tokens with the later numbers of one.
      const drawn = seed === undefined ? sampling : { ...sampling, seed: seedAfter(seed, answered) };
      for await (const { tokenId } of this.near.generateTokens({
        promptIds,
        maxTokens: most,
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
