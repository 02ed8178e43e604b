// Converts a step of the scheduler to a batch for the device.

import type { Batch } from "../runtime/batch.js";
import { SAMPLE_FLAGS, addTokens, emptyBatch, settingsRow } from "../runtime/batch.js";
import type { Sampling } from "./resolved_sampling.js";
import { drawAt } from "./resolved_sampling.js";
import type { Sequence } from "./sequence.js";
import type { Step } from "./step.js";

/** How a row samples its token. ``masked``: the constraint has set the slot's mask for this step. */
export interface RowSampling {
  readonly sampling: Sampling;
  readonly masked: boolean;
}

/** Call it before any later commit: a token that has not been read back is referred to by its slot. */
export function stepBatch(step: Step, pageSize: number, samplingOf: (sequence: Sequence) => RowSampling): Batch {
  const batch = emptyBatch();
  for (const { sequence, start, length, numSampled, promptLogprobs } of step.rows) {
    const { tokens, tables, slot } = sequence;
    const tokenIds = Array.from({ length }, (_, index) => tokens[start + index] ?? -1 - slot);
    const pages = tables.map((table) => table.pages);
    addTokens(batch, tokenIds, start, pages, pageSize, sequence.params.adapter?.slot);
    // The last rows are sampled, first those for the prompt.
    for (let index = 0; index < numSampled; index++) {
      batch.sample_rows.push(batch.token_ids.length - numSampled + index);
      if (index < promptLogprobs) {
        // Greedy, and left in no slot.
        batch.sample_slots.push(-1, 0);
        batch.sample_settings.push(...settingsRow({}));
        continue;
      }
      const { sampling, masked } = samplingOf(sequence);
      const { counts, bias, mask } = SAMPLE_FLAGS;
      batch.sample_slots.push(
        slot,
        (sampling.penalizes ? counts : 0) | (sampling.logitBias === null ? 0 : bias) | (masked ? mask : 0),
      );
      // This step's token already counts as in flight.
      const draw = drawAt(sampling.seed, sequence.generated + sequence.inFlight - 1);
      batch.sample_settings.push(...settingsRow({ ...sampling, draw }));
    }
  }
  return batch;
}
