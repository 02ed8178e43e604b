// Drafts from the text itself: the tokens that followed an earlier occurrence of a sequence's last tokens. Saxena 2023
// (prompt lookup decoding).

import type { Sequence } from "../engine/sequence.js";
import type { Drafter, Guess } from "../engine/speculation.js";

// The longest and the shortest run of last tokens that is looked up; long ones are preferred, because their guesses are
// better.
export const LONGEST = 4;
const SHORTEST = 2;
/** More than the tokens of any vocabulary; a pair of tokens is one exact number. */
const PAIR = 2 ** 26;

/** An earlier place in a text whose last ``size`` tokens are those at the text's end. */
export interface Occurrence {
  readonly end: number;
  readonly size: number;
}

/** Where each pair of tokens ends among the first tokens of one sequence. */
export class NgramIndex {
  /** The last end of each pair; and for each end of a pair the one before it, 0 if there is none. */
  readonly #last = new Map<number, number>();
  readonly #before = [0, 0];

  /** Read the tokens up to ``length``. */
  extend(tokens: readonly number[], length: number): void {
    for (let end = this.#before.length; end <= length; end++) {
      const pair = pairBefore(tokens, end);
      this.#before.push(this.#last.get(pair) ?? 0);
      this.#last.set(pair, end);
    }
  }

  /** The last occurrence of the longest run at the end of the first ``length`` tokens; null if none occurred before. */
  follow(tokens: readonly number[], length: number): Occurrence | null {
    let found: Occurrence | null = null;
    let end = length < SHORTEST ? 0 : (this.#last.get(pairBefore(tokens, length)) ?? 0);
    for (; end > 0 && found?.size !== LONGEST; end = this.#before[end] ?? 0) {
      let size = SHORTEST;
      while (size < Math.min(LONGEST, end) && tokens[end - 1 - size] === tokens[length - 1 - size]) size++;
      if (size > (found?.size ?? 0)) found = { end, size };
    }
    return found;
  }
}

function pairBefore(tokens: readonly number[], end: number): number {
  return (tokens[end - 2] ?? 0) * PAIR + (tokens[end - 1] ?? 0);
}

export class NgramDrafter implements Drafter {
  /** The text is what it guesses from. */
  readonly readsImages = true;
  readonly #indexes = new Map<Sequence, NgramIndex>();

  draft(guesses: readonly Guess[]): Promise<void> {
    for (const { sequence, most } of guesses) {
      const { tokens } = sequence;
      const index = this.#indexes.get(sequence) ?? new NgramIndex();
      this.#indexes.set(sequence, index);
      // Without the last token; otherwise the end of the sequence would match itself.
      index.extend(tokens, tokens.length - 1);
      const { end } = index.follow(tokens, tokens.length) ?? {};
      sequence.drafts = end === undefined ? [] : tokens.slice(end, end + most);
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
