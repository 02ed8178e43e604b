// Frames of sound as the plan "ctc" reads them, and those of its test. `compiler/runtime/audio/frame_rows.py` makes the
// same.

import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import type { ConformerSpec } from "../runtime/manifest.js";
import { addText } from "../runtime/sequence_batch.js";
import type { Frames } from "./log_mel.js";

/**
 * The batch of one window: each row has several frames, one behind the other, and the last row has zeros behind its last
 * frame.
 */
export function framesBatch({ data, bins, count }: Frames, { frames: ofRow }: ConformerSpec): Batch {
  const rows = Math.ceil(count / ofRow);
  const frames = new Float32Array(rows * ofRow * bins);
  for (let frame = 0; frame < count; frame++)
    for (let bin = 0; bin < bins; bin++) frames[frame * bins + bin] = Number(data[bin * count + frame]);
  const batch = emptyBatch();
  addText(
    batch,
    Array.from({ length: rows }, () => 0),
  );
  const row_frames = Array.from({ length: rows }, (_, row) => Math.min(ofRow, count - row * ofRow));
  return { ...batch, frames, row_frames };
}

/**
 * The batch of the test of a bundle, whose texts are numbers: the row of a number has frames between -1 and 1 that follow
 * from it. The last row of a text lacks one frame.
 */
export function withTestFrames(batch: Batch, { frames: ofRow, mel_bins: bins }: ConformerSpec): Batch {
  const size = ofRow * bins;
  const last = new Set(batch.seq_starts.slice(1).map((end) => end - 1));
  const frames = Float32Array.from({ length: batch.token_ids.length * size }, (_, index) => {
    const [row, element] = [Math.floor(index / size), index % size];
    if (last.has(row) && element >= size - bins) return 0;
    const number = Number(batch.token_ids[row]) % 64;
    return ((31 * number + 17 * element + number * element) % 64) / 32 - 1;
  });
  const row_frames = batch.token_ids.map((_, row) => (last.has(row) ? ofRow - 1 : ofRow));
  return { ...batch, frames, row_frames };
}
