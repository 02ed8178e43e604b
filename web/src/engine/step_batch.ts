// A step as the device takes it. A scheduler's step and how each sequence samples flow in; a batch flows out.

import type { Batch } from "../runtime/batch.js";
import { SAMPLE_FLAGS, settingsRow } from "../runtime/batch.js";
import type { Sampling } from "./resolved_sampling.js";
import { drawAt } from "./resolved_sampling.js";
import type { Step } from "./scheduler.js";
import type { Sequence } from "./sequence.js";

/** What a row's flags and settings come from. ``masked``: the constraint has set the slot's mask for this very step. */
export interface RowSampling {
  readonly sampling: Sampling;
  readonly masked: boolean;
}

/** To be made before any later commit: a token that is not read yet is named by its slot. */
export function stepBatch(step: Step, pageSize: number, samplingOf: (sequence: Sequence) => RowSampling): Batch {
  const batch = {
    token_ids: [] as number[], positions: [] as number[], slots: [] as number[], seq_starts: [0], page_indptr: [0], page_ids: [] as number[],
    sample_rows: [] as number[], sample_slots: [] as number[], sample_settings: [] as number[],
  }; // prettier-ignore
  for (const { sequence, start, count, told, sample } of step.rows) {
    const { tokens, pages, slot } = sequence;
    for (let position = start; position < start + count; position++) {
      batch.token_ids.push(tokens[position] ?? -1 - slot);
      batch.positions.push(position);
      batch.slots.push((pages[Math.floor(position / pageSize)] ?? -1) * pageSize + (position % pageSize));
    }
    batch.seq_starts.push(batch.token_ids.length);
    batch.page_ids.push(...pages);
    batch.page_indptr.push(batch.page_ids.length);
    const toldEnd = batch.token_ids.length - (sample ? 1 : 0);
    for (let row = toldEnd - told; row < toldEnd; row++) {
      batch.sample_rows.push(row);
      // The likeliest token, which without a slot leaves no trace.
      batch.sample_slots.push(-1, 0);
      batch.sample_settings.push(...settingsRow({}));
    }
    if (!sample) continue;
    const { sampling, masked } = samplingOf(sequence);
    const { counts, bias, mask } = SAMPLE_FLAGS;
    const flags = (sampling.penalizes ? counts : 0) | (sampling.logitBias === null ? 0 : bias) | (masked ? mask : 0);
    batch.sample_rows.push(batch.token_ids.length - 1);
    batch.sample_slots.push(slot, flags);
    // This step's own token counts as on its way already.
    const draw = drawAt(sampling.seed, sequence.generated + sequence.inFlight - 1);
    batch.sample_settings.push(...settingsRow({ ...sampling, draw }));
  }
  return batch;
}
