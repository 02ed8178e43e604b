// SentencePiece's precompiled normalization: a double-array trie (darts-clone) from texts to their replacements.

import type { Aligned } from "./aligned.js";
import { replaceRanges } from "./aligned.js";

/** Longer clusters of characters are replaced character by character (the tokenizers library). */
const MAX_CLUSTER_BYTES = 5;

export class Charsmap {
  readonly #units: Uint32Array;
  readonly #replacements: Uint8Array;
  readonly #segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });
  readonly #encoder = new TextEncoder();
  readonly #decoder = new TextDecoder();

  /** ``base64``: the size of the trie in bytes, its units, and the replacements, each ended by a zero. */
  constructor(base64: string) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const size = bytes.length < 4 ? -1 : view.getUint32(0, true);
    if (size < 4 || size % 4 > 0 || 4 + size > bytes.length) throw new Error("the precompiled_charsmap is damaged");
    this.#units = Uint32Array.from({ length: size / 4 }, (_, index) => view.getUint32(4 + 4 * index, true));
    this.#replacements = bytes.subarray(4 + size);
  }

  normalize(text: Aligned): Aligned {
    const ranges: { from: number; to: number; by: string }[] = [];
    let index = 0;
    for (const { segment } of this.#segmenter.segment(text.chars.join(""))) {
      const from = index;
      const characters = Array.from(segment);
      index += characters.length;
      const whole = this.#encoder.encode(segment).length <= MAX_CLUSTER_BYTES ? this.#replacement(segment) : null;
      if (whole !== null) ranges.push({ from, to: index, by: whole });
      else
        characters.forEach((character, at) => {
          const by = this.#replacement(character);
          if (by !== null) ranges.push({ from: from + at, to: from + at + 1, by });
        });
    }
    return replaceRanges(text, ranges);
  }

  /** The replacement of the shortest beginning that has one, as the tokenizers library replaces the text; or null. */
  #replacement(text: string): string | null {
    let position = offsetOf(this.#units[0] ?? 0);
    for (const byte of this.#encoder.encode(text)) {
      if (byte === 0) return null;
      position ^= byte;
      const unit = this.#units[position] ?? 0;
      if ((unit & 0x800000ff) >>> 0 !== byte) return null;
      position ^= offsetOf(unit);
      if (((unit >>> 8) & 1) === 1) {
        const start = (this.#units[position] ?? 0) & 0x7fffffff;
        const end = this.#replacements.indexOf(0, start);
        return this.#decoder.decode(this.#replacements.subarray(start, end < 0 ? undefined : end));
      }
    }
    return null;
  }
}

function offsetOf(unit: number): number {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}
