// A sequence: the tokens that are in the device's pages, and the batches that add to them. Token ids flow in, batches of one sequence flow out.

import type { Batch, SampleSettings } from "../runtime/batch.js";
import { settingsRow } from "../runtime/batch.js";

export class Sequence {
  #length = 0;

  /** The sequence takes the pool's pages in their order: it is the only one. */
  constructor(private readonly pageSize: number) {}

  /** Tokens so far. */
  get length(): number {
    return this.#length;
  }

  /** The batch that appends ``tokenIds``; with ``sample``, the token after the last of them is wanted, chosen so. */
  append(tokenIds: readonly number[], sample: SampleSettings | null): Batch {
    const positions = tokenIds.map((_, index) => this.#length + index);
    this.#length += tokenIds.length;
    const numPages = Math.ceil(this.#length / this.pageSize);
    return {
      token_ids: tokenIds,
      positions,
      // Page i holds positions i * pageSize and on, so a token's slot is its position.
      slots: positions,
      seq_starts: [0, tokenIds.length],
      page_indptr: [0, numPages],
      page_ids: Array.from({ length: numPages }, (_, page) => page),
      sample_rows: sample === null ? [] : [tokenIds.length - 1],
      sample_slots: sample === null ? [] : [0, 0],
      sample_settings: sample === null ? [] : settingsRow(sample),
    };
  }
}
