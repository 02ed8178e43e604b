// The two searches of language models' tokenizers, which tokenizers_module.mjs puts into @huggingface/tokenizers in
// place of its own, which are longer: the order of merges in byte-pair encoding, and the best pieces of a Unigram model.

/** A place where two neighbouring pieces can merge. */
interface Merge {
  readonly score: number;
}

/** Merges by their scores, the lowest first: a binary heap. */
export class MergeQueue {
  readonly #heap: Merge[] = [];

  is_empty(): boolean {
    return this.#heap.length === 0;
  }

  push(merge: Merge): void {
    const heap = this.#heap;
    let at = heap.length;
    for (; at > 0; at = parentOf(at)) {
      const above = heap[parentOf(at)];
      if (above === undefined || above.score <= merge.score) break;
      heap[at] = above;
    }
    heap[at] = merge;
  }

  pop(): Merge | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return first;
    let at = 0;
    for (;;) {
      const [left, right] = [heap[2 * at + 1], heap[2 * at + 2]];
      const isRight = right !== undefined && left !== undefined && right.score < left.score;
      const below = isRight ? right : left;
      if (below === undefined || below.score >= last.score) break;
      heap[at] = below;
      at = 2 * at + (isRight ? 2 : 1);
    }
    heap[at] = last;
    return first;
  }
}

const parentOf = (at: number): number => (at - 1) >> 1;

/** The best way to each place of a text: where its last piece begins, and the sum of its scores. */
interface Ending {
  readonly start: number;
  readonly score: number;
}

/** The pieces of a text with the highest sum of scores (Kudo 2018), if pieces are inserted from left to right. */
export class PieceLattice {
  readonly chars: readonly string[];
  readonly #endings: Ending[] = [{ start: 0, score: 0 }];

  constructor(text: string) {
    this.chars = Array.from(text);
  }

  /** Of two ways with the same sum, the first one remains. */
  insert(start: number, length: number, pieceScore: number): void {
    const end = start + length;
    const score = (this.#endings[start]?.score ?? 0) + pieceScore;
    if ((this.#endings[end]?.score ?? -Infinity) < score) this.#endings[end] = { start, score };
  }

  tokens(): readonly string[] {
    const pieces: string[] = [];
    for (let end = this.chars.length; end > 0;) {
      const start = this.#endings[end]?.start ?? 0;
      pieces.push(this.chars.slice(start, end).join(""));
      end = start;
    }
    return pieces.reverse();
  }
}
