// An inverted index of words that ranks passages by BM25 (Robertson and Zaragoza 2009). A passage is known by its slot.

import type { Ranked } from "./ranks.js";
import { best } from "./ranks.js";
import { wordsOf } from "./words.js";

const SATURATION = 1.2;
const LENGTH_SHARE = 0.75;

export class WordIndex {
  /** Slots and counts of each word, one after the other. */
  readonly #postings = new Map<string, number[]>();
  /** The number of words of each slot; -1 if it was removed. */
  readonly #lengths: number[] = [];
  /** The number of passages with each word. */
  readonly #frequency = new Map<string, number>();
  #passages = 0;
  #words = 0;

  /** The number of slots, including removed ones. */
  get slots(): number {
    return this.#lengths.length;
  }

  /** Add a passage under the next slot. */
  add(text: string): void {
    const slot = this.#lengths.length;
    const counts = countsOf(text);
    let length = 0;
    for (const [word, count] of counts) {
      length += count;
      const postings = this.#postings.get(word);
      if (postings === undefined) this.#postings.set(word, [slot, count]);
      else postings.push(slot, count);
      this.#frequency.set(word, (this.#frequency.get(word) ?? 0) + 1);
    }
    this.#lengths.push(length);
    this.#passages++;
    this.#words += length;
  }

  /** Remove the passage of a slot; ``text`` is what was added. Its postings are skipped from now on. */
  remove(slot: number, text: string): void {
    const length = this.#lengths[slot] ?? -1;
    if (length < 0) return;
    for (const word of countsOf(text).keys()) this.#frequency.set(word, (this.#frequency.get(word) ?? 1) - 1);
    this.#lengths[slot] = -1;
    this.#passages--;
    this.#words -= length;
  }

  /** The ``count`` best passages that contain a word of the query, the best first. */
  search(query: string, count: number): Ranked[] {
    const scores = new Map<number, number>();
    const meanLength = this.#words / Math.max(1, this.#passages);
    for (const [word, repeated] of countsOf(query)) {
      const postings = this.#postings.get(word) ?? [];
      const frequency = this.#frequency.get(word) ?? 0;
      const rarity = Math.log(1 + (this.#passages - frequency + 0.5) / (frequency + 0.5));
      for (let index = 0; index < postings.length; index += 2) {
        const slot = postings[index] ?? 0;
        const inPassage = postings[index + 1] ?? 0;
        const length = this.#lengths[slot] ?? -1;
        if (length < 0) continue;
        const norm = SATURATION * (1 - LENGTH_SHARE + (LENGTH_SHARE * length) / meanLength);
        const score = (repeated * rarity * inPassage * (SATURATION + 1)) / (inPassage + norm);
        scores.set(slot, (scores.get(slot) ?? 0) + score);
      }
    }
    return best(scores, count);
  }
}

function countsOf(text: string): Map<string, number> {
  const counts = new Map<string, number>();
  for (const word of wordsOf(text)) counts.set(word, (counts.get(word) ?? 0) + 1);
  return counts;
}
