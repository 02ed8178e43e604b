// Converts a step of the scheduler to a batch for the device.

import type { Batch, OpenBatch } from "../runtime/batch.js";
import { SAMPLE_FLAGS, addTokens, emptyBatch, settingsRow } from "../runtime/batch.js";
import { pageTables } from "./pages.js";
import type { Sampling } from "./resolved_sampling.js";
import { drawAt } from "./resolved_sampling.js";
import type { Sequence } from "./sequence.js";
import { StateTable } from "./states.js";
import type { Step } from "./step.js";

/** How a row samples its token. ``masked``: the constraint has set the slot's mask for this step. */
export interface RowSampling {
  readonly sampling: Sampling;
  readonly masked: boolean;
}

/** At this temperature all weights are 1. */
const FLAT = 1e30;

/**
 * The settings of a row that choose a token whatever the logits are, so that the device reports its log-probability: all
 * weights are equal, and the draw is the middle of the token's share.
 */
function choosing(tokenId: number, vocabSize: number): readonly number[] {
  return settingsRow({ temperature: FLAT, draw: (tokenId + 0.5) / vocabSize });
}

/**
 * Call it before any later commit: a token that has not been read back is referred to by its slot. Rows that check drafts
 * leave no token in their slot, because only the host knows how many drafts are right.
 */
export function stepBatch(
  step: Step,
  pageSize: number,
  vocabSize: number,
  samplingOf: (sequence: Sequence) => RowSampling,
): Batch {
  const batch = emptyBatch();
  const seen = new ImageRows();
  for (const { sequence, start, length, numSampled, promptLogprobs, drafts } of step.rows) {
    const { tokens, slot } = sequence;
    const known = [...tokens.slice(start, start + length), ...drafts];
    const tokenIds = Array.from({ length }, (_, index) => known[index] ?? -1 - slot);
    const pages = pageTables(sequence).map((table) => table.pages);
    addTokens(batch, tokenIds, start, pages, pageSize, sequence.params.adapter?.slot);
    seen.add(batch, sequence, start, length);
    const state = sequence.tables.at(-1);
    if (state instanceof StateTable) batch.state_slots.push(...state.pair(start));
    // The last rows are sampled, first those for the prompt.
    for (let index = 0; index < numSampled; index++) {
      batch.sample_rows.push(batch.token_ids.length - numSampled + index);
      if (index < promptLogprobs) {
        // The row at position p chooses the prompt's token at p + 1, and leaves it in no slot.
        batch.sample_slots.push(-1, 0);
        batch.sample_settings.push(...choosing(tokens[start + length - numSampled + index + 1] ?? -1, vocabSize));
        continue;
      }
      const { sampling, masked } = samplingOf(sequence);
      const { counts, bias, mask } = SAMPLE_FLAGS;
      batch.sample_slots.push(
        drafts.length > 0 ? -1 : slot,
        (sampling.penalizes ? counts : 0) | (sampling.logitBias === null ? 0 : bias) | (masked ? mask : 0),
      );
      // This step's token already counts as in flight.
      const draw = drawAt(sampling.seed, sequence.generated + sequence.inFlight - 1 + index - promptLogprobs);
      batch.sample_settings.push(...settingsRow({ ...sampling, draw }));
    }
  }
  return seen.in(batch);
}

/** What images add to the rows of a batch that is being built. */
export class ImageRows {
  readonly #features: Float32Array[] = [];
  readonly #placed: [row: number, length: number, isSound: boolean][] = [];

  /**
   * Add what those of a sequence change in its last ``length`` rows, which begin at position ``start``. The token of a
   * row is ``ahead`` of its position.
   */
  add(batch: OpenBatch, { params: { images } }: Sequence, start: number, length: number, ahead = 0): void {
    if (!images) return;
    const first = start + ahead;
    for (const [position, count, own, isSound] of images.between(first, first + length)) {
      this.#placed.push([batch.token_ids.length - length + position - first, count, isSound]);
      this.#features.push(own);
    }
    const turns = images.ropePositions?.(start, start + length) ?? [];
    batch.rope_positions.splice(batch.rope_positions.length - turns.length, turns.length, ...turns);
  }

  in(batch: OpenBatch): Batch {
    if (this.#features.length === 0) return batch;
    const reach = [...batch.positions];
    // A sound is not seen both ways.
    for (const [row, length, isSound] of this.#placed)
      if (!isSound) reach.fill(reach[row + length - 1] ?? 0, row, row + length);
    const feature_rows = this.#placed.flatMap(([row, length]) => Array.from({ length }, (_, index) => row + index));
    return { ...batch, features: joined(this.#features), feature_rows, reach };
  }
}

function joined(parts: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const part of parts) all.set(part, (end += part.length) - part.length);
  return all;
}
