// The waiting queue: the sequences that are not running, by rank.

import type { Sequence } from "./sequence.js";
import { insertByRank } from "./sequence.js";

export class WaitingQueue {
  readonly #queue: Sequence[] = [];

  get length(): number {
    return this.#queue.length;
  }

  /** The next one to admit. */
  get head(): Sequence | undefined {
    return this.#queue[0];
  }

  add(sequence: Sequence): void {
    sequence.state = "waiting";
    insertByRank(this.#queue, sequence);
  }

  remove(sequence: Sequence): void {
    this.#queue.splice(this.#queue.indexOf(sequence), 1);
  }
}
