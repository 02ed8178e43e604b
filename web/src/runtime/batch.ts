// A batch: S new tokens of B sequences, of which R rows are sampled. The engine makes it, the runner reads it.

import type { Dims } from "./expr.js";

/**
 * What a forward takes in, named as in the manifest's plan. token_ids, positions and slots (S,): each new token, its place in its sequence, and
 * where its key and value go (page * page_size + place). seq_starts and page_indptr (B + 1,): where a sequence's rows and pages start.
 * page_ids (L,): all sequences' pages. sample_rows (R,): the rows whose next token is wanted.
 */
export interface Batch {
  readonly token_ids: readonly number[];
  readonly positions: readonly number[];
  readonly slots: readonly number[];
  readonly seq_starts: readonly number[];
  readonly page_indptr: readonly number[];
  readonly page_ids: readonly number[];
  readonly sample_rows: readonly number[];
}

/** The dims of a batch on a pool of ``numPages`` pages. */
export function dimsOf(batch: Batch, numPages: number): Dims {
  return {
    S: batch.token_ids.length,
    B: batch.seq_starts.length - 1,
    R: batch.sample_rows.length,
    T: batch.positions.reduce((longest, position) => Math.max(longest, position + 1), 0),
    L: batch.page_ids.length,
    P: numPages,
  };
}
