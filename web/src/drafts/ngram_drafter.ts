// Drafts from the text itself: the tokens that followed an earlier occurrence of a sequence's last tokens. Saxena 2023
// (prompt lookup decoding).

import type { Sequence } from "../engine/sequence.js";
import type { Drafter, Guess } from "../engine/speculation.js";

// The longest and the shortest run of last tokens that is looked up; long ones first, because their guesses are better.
const LONGEST = 4;
const SHORTEST = 2;

/** The last end of each run of tokens among the first ``length`` tokens of one sequence. */
class Index {
  readonly #ends = new Map<string, number>();
  #length = 0;

  extend(tokens: readonly number[], length: number): void {
    for (let end = this.#length + 1; end <= length; end++)
      for (let size = SHORTEST; size <= Math.min(LONGEST, end); size++)
        this.#ends.set(tokens.slice(end - size, end).join(), end);
    this.#length = Math.max(this.#length, length);
  }

  /** The earlier end of the longest run at the end of the tokens; null if no run occurred before. */
  follow(tokens: readonly number[]): number | null {
    for (let size = Math.min(LONGEST, tokens.length); size >= SHORTEST; size--) {
      const end = this.#ends.get(tokens.slice(-size).join());
      if (end !== undefined) return end;
    }
    return null;
  }
}

export class NgramDrafter implements Drafter {
  /** The text is what it guesses from. */
  readonly readsImages = true;
  readonly #indexes = new Map<Sequence, Index>();

  draft(guesses: readonly Guess[]): Promise<void> {
    for (const { sequence, most } of guesses) {
      const { tokens } = sequence;
      const index = this.#indexes.get(sequence) ?? new Index();
      this.#indexes.set(sequence, index);
      // Without the last token; otherwise the end of the sequence would match itself.
      index.extend(tokens, tokens.length - 1);
      const end = index.follow(tokens);
      sequence.drafts = end === null ? [] : tokens.slice(end, end + most);
    }
    return Promise.resolve();
  }

  forget(sequence: Sequence): void {
    this.#indexes.delete(sequence);
  }

  reset(): void {
    this.#indexes.clear();
  }
}
