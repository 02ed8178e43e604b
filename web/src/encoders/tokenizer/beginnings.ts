// Finds a beginning of a long text whose first tokens are those of the whole text, so that a text that is much longer
// than a model's context is tokenized only as far as needed. compiler/runtime/text/beginnings.py does the same.

import type { StableTokens } from "./stable_tokens.js";
import { borderBefore } from "./word_borders.js";

/** More than most texts have. */
const CHARACTERS_PER_TOKEN = 8;

/** What Unigram's long words need; its best pieces up to a place do not depend on what follows it. */
export interface UnigramEnds {
  /** The number of characters of the longest piece. */
  readonly longest: number;
  /** Whether the normalizer leaves a text and each of its characters as they are, and none is white space or a mark. */
  isPlain(text: string): boolean;
  ids(text: string): readonly number[];
}

export class Beginnings {
  constructor(
    private readonly borders: RegExp | null,
    private readonly stable: StableTokens | null,
    private readonly unigram: UnigramEnds | null,
  ) {}

  /**
   * What ``encode`` makes of a beginning of ``text`` whose first ``count`` + 1 tokens are those of the text. Null for a
   * short text, and for one that may have fewer. Each beginning that is tried is four times as long as the one before.
   */
  beyond<T extends { readonly ids: readonly number[] }>(
    text: string,
    count: number,
    encode: (part: string) => T,
  ): T | null {
    const first = CHARACTERS_PER_TOKEN * Math.max(count, 1) + (this.stable?.leastCharacters ?? 0);
    for (let size = first; size < text.length; size *= 4) {
      const border = this.borders === null ? null : borderBefore(this.borders, text, size);
      const cut = border ?? this.stable?.cut(text, size) ?? null;
      if (cut !== null) {
        const found = encode(text.slice(0, cut));
        const numStable = border !== null || this.stable === null ? found.ids.length : this.stable.count(found.ids);
        if (numStable > count) return found;
      } else if (size <= 4 * first && this.#endsAgree(text, size, count)) {
        // If the ends of a longer beginning do not agree either, they never do.
        return encode(text.slice(0, size));
      }
    }
    return null;
  }

  /** Whether no end of the text's beginning changes its first ``count`` + 1 tokens: one of them is between two pieces. */
  #endsAgree(text: string, size: number, count: number): boolean {
    if (this.unigram === null) return false;
    const { longest } = this.unigram;
    // In characters of the string, of which a piece has at most twice as many.
    const from = size - 2 * longest;
    if (!this.unigram.isPlain(text.slice(from, size + 1))) return false;
    let agreed: string | undefined;
    for (let end = from + 1; end <= size; end++) {
      if (/^[\uDC00-\uDFFF]/.test(text.slice(end, end + 1))) continue;
      const ids = this.unigram.ids(text.slice(0, end)).slice(0, count + 1);
      if (ids.length <= count || (agreed !== undefined && agreed !== ids.join())) return false;
      agreed = ids.join();
    }
    return true;
  }
}
