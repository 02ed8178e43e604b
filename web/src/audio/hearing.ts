// Windows of sound as a runner reads them, and the batches of tokens that attend to the last one.

import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import type { Manifest } from "../runtime/manifest.js";
import type { Runner } from "../runtime/runner.js";
import type { Frames } from "./log_mel.js";

/** The frames of a row: two, that before and that after them. */
const FRAMES_OF_ROW = 4;

type Sizes = Pick<Manifest, "page_size" | "spec">;

/**
 * The batch of the window from frame ``start`` on, whose keys and values will be on the first pages of sound. Beyond the
 * end of the sound, frames are zeros, as in training.
 */
export function windowBatch({ spec }: Sizes, { data, bins, count }: Frames, start: number): Batch {
  const rows = rowsOf({ spec });
  const frames = new Float32Array(rows * FRAMES_OF_ROW * bins);
  // Row t has the frames 2t - 1 to 2t + 2, one behind the other, with zeros outside of the window.
  for (let row = 0; row < rows; row++)
    for (let place = 0; place < FRAMES_OF_ROW; place++) {
      const frame = 2 * row - 1 + place;
      if (frame < 0 || frame >= 2 * rows || start + frame >= count) continue;
      const at = (row * FRAMES_OF_ROW + place) * bins;
      for (let bin = 0; bin < bins; bin++) frames[at + bin] = Number(data[bin * count + start + frame]);
    }
  const positions = Array.from({ length: rows }, (_, index) => index);
  const token_ids = positions.map(() => 0);
  return {
    ...emptyBatch(),
    token_ids,
    positions,
    slots: positions,
    seq_starts: [0, rows],
    source_slots: positions,
    frames,
  };
}

/** The batch of one sequence with the sound to which it attends, all rows of the last window. */
export function attending({ spec, page_size }: Sizes, batch: Batch): Batch {
  const rows = rowsOf({ spec });
  const pages = Array.from({ length: Math.ceil(rows / page_size) }, (_, index) => index);
  return {
    ...batch,
    source_positions: batch.positions.map(() => rows - 1),
    source_page_indptr: [0, pages.length],
    source_page_ids: pages,
  };
}

/** The window of the self-test. `compiler/runtime/audio/windows.py` makes the same. */
export function testWindow({ spec }: Pick<Manifest, "spec">): Frames {
  const bins = spec.audio?.mel_bins ?? 0;
  const count = 2 * rowsOf({ spec });
  const data = Float32Array.from({ length: bins * count }, (_, index) => {
    const [mel, frame] = [Math.floor(index / count), index % count];
    return ((31 * frame + 17 * mel + frame * mel) % 64) / 32 - 1;
  });
  return { data, bins, count };
}

/** The rows of a window. */
export const rowsOf = ({ spec }: Pick<Manifest, "spec">): number => spec.audio?.positions ?? 0;

type Tested = Pick<Runner, "manifest" | "limits" | "rows" | "features" | "forwardLogits" | "submit" | "choose">;

/** A runner for the self-test: its batches attend to the test's window, which the variants that are chosen compute. */
export function hearing(runner: Tested & Pick<Runner, "listen">): Tested {
  const { manifest, limits, rows } = runner;
  const window = windowBatch(manifest, testWindow(manifest), 0);
  let heard: Promise<void> | null = null;
  const listened = (): Promise<void> => (heard ??= runner.listen(window));
  return {
    manifest,
    limits,
    rows,
    features: (batch) => runner.features(batch),
    choose: (choices) => {
      heard = null;
      runner.choose(choices);
    },
    forwardLogits: async (batch) => {
      await listened();
      return runner.forwardLogits(attending(manifest, batch));
    },
    submit: async (batch, options) => {
      await listened();
      return runner.submit(attending(manifest, batch), options);
    },
  };
}
