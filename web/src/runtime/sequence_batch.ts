// Builds batches of single sequences, for the self-test, tuning and embeddings.

import type { Batch } from "./batch.js";
import { emptyBatch, settingsRow } from "./batch.js";

/**
 * A batch of new tokens of one sequence, which follow ``start`` cached tokens in ``pages``. ``sample``: whether to
 * sample the token after the last one.
 */
export function sequenceBatch(
  tokenIds: readonly number[],
  start: number,
  pages: readonly number[],
  pageSize: number,
  sample: boolean,
): Batch {
  const positions = tokenIds.map((_, index) => start + index);
  return {
    token_ids: tokenIds,
    positions,
    slots: positions.map(
      (position) => (pages[Math.floor(position / pageSize)] ?? 0) * pageSize + (position % pageSize),
    ),
    seq_starts: [0, tokenIds.length],
    page_indptr: [0, pages.length],
    page_ids: pages,
    sample_rows: sample ? [tokenIds.length - 1] : [],
    sample_slots: sample ? [-1, 0] : [],
    sample_settings: sample ? settingsRow({}) : [],
  };
}

/** Joins the batches of several sequences. */
export function joinBatches(batches: readonly Batch[]): Batch {
  const joined = emptyBatch();
  for (const batch of batches) {
    joined.sample_rows.push(...batch.sample_rows.map((row) => joined.token_ids.length + row));
    for (const name of ["token_ids", "positions", "slots", "page_ids", "sample_slots", "sample_settings"] as const)
      joined[name].push(...batch[name]);
    joined.seq_starts.push(joined.token_ids.length);
    joined.page_indptr.push(joined.page_ids.length);
  }
  return joined;
}
