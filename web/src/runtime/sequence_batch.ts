// Builds batches of single sequences, for the self-test, tuning and embeddings.

import type { Batch, OpenBatch } from "./batch.js";
import { addTokens, emptyBatch, settingsRow } from "./batch.js";
import type { PagesByGroup } from "./page_groups.js";

/**
 * A batch of new tokens of one sequence, which follow ``start`` cached tokens in ``pages``. ``sample``: whether to
 * sample the token after the last one. ``state``: the slot of its states, if the model has them.
 */
export function sequenceBatch(
  tokenIds: readonly number[],
  start: number,
  pages: PagesByGroup,
  pageSize: number,
  sample: boolean,
  state = 0,
): Batch {
  const batch = emptyBatch();
  addTokens(batch, tokenIds, start, pages, pageSize);
  batch.state_slots.push(state, state);
  if (sample) sampleLast(batch);
  return batch;
}

/** Sample the token after the last one of a batch, in no slot. */
export function sampleLast(batch: OpenBatch): void {
  batch.sample_rows.push(batch.token_ids.length - 1);
  batch.sample_slots.push(-1, 0);
  batch.sample_settings.push(...settingsRow({}));
}

/**
 * Append a complete text to a batch of an encoder, whose results are of all texts. ``types``: the type of each token; by
 * default all are of type 0.
 */
export function addText(batch: OpenBatch, tokenIds: readonly number[], types?: readonly number[]): void {
  addTokens(batch, tokenIds, 0, [], 1);
  if (types !== undefined) batch.token_types.splice(-tokenIds.length, tokenIds.length, ...types);
  sampleLast(batch);
}
