// A batch: S new tokens of B sequences, of which R rows are sampled. The engine makes it, the runner reads it.

import { RequestError } from "../errors.js";
import type { Dims } from "./expr.js";

/**
 * What a forward takes in, named as in the manifest's plan. token_ids, positions and slots (S,): each new token, its place in its sequence, and
 * where its key and value go (page * page_size + place). seq_starts and page_indptr (B + 1,): where a sequence's rows and pages start; every
 * sequence has at least one new token.
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

/** New tokens of one sequence that follow ``start`` cached ones and lie in ``pages``; with ``sample``, the token after the last is wanted. */
export function sequenceBatch(tokenIds: readonly number[], start: number, pages: readonly number[], pageSize: number, sample: boolean): Batch {
  const positions = tokenIds.map((_, index) => start + index);
  return {
    token_ids: tokenIds,
    positions,
    slots: positions.map((position) => (pages[Math.floor(position / pageSize)] ?? 0) * pageSize + (position % pageSize)),
    seq_starts: [0, tokenIds.length],
    page_indptr: [0, pages.length],
    page_ids: pages,
    sample_rows: sample ? [tokenIds.length - 1] : [],
  };
}

/** The dims of a batch on a pool of ``numPages`` pages. Throws RequestError for a sequence without a new token. */
export function dimsOf(batch: Batch, numPages: number): Dims {
  // Kernels take S = B as one new token of every sequence.
  const empty = batch.seq_starts.findIndex((start, index) => start === batch.seq_starts[index + 1]);
  if (empty >= 0) throw new RequestError(`batch: sequence ${empty} has no new token; leave it out`, { sequence: empty });
  return {
    S: batch.token_ids.length,
    B: batch.seq_starts.length - 1,
    R: batch.sample_rows.length,
    T: batch.positions.reduce((longest, position) => Math.max(longest, position + 1), 0),
    L: batch.page_ids.length,
    P: numPages,
  };
}
