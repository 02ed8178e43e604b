// The batches of windows of sound, and those of tokens that attend to the last one.

import { BundleError } from "../errors.js";
import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import type { AudioSpec, Manifest } from "../runtime/manifest.js";
import type { Runner } from "../runtime/runner.js";
import type { AudioWindow } from "./readings.js";
import { melWindow, sampleWindow } from "./readings.js";

type Sizes = Pick<Manifest, "page_size" | "spec">;

/** The rows of the self-test's window. */
const TEST_ROWS = 80;

/** The batch of a window, whose keys and values will be on the first pages of sound. */
export function windowBatch(manifest: Pick<Manifest, "spec">, { rows, frames, rowFrames }: AudioWindow): Batch {
  const { rows_behind: behind } = audioOf(manifest);
  const positions = Array.from({ length: rows }, (_, index) => index);
  // The rows behind are a sequence of their own, to which no other row attends.
  const seq_starts = behind === 0 ? [0, rows] : [0, rows - behind, rows];
  return {
    ...emptyBatch(),
    token_ids: positions.map(() => 0),
    positions,
    slots: positions,
    seq_starts,
    source_slots: positions,
    source_positions: positions,
    frames,
    // Frames that are read by other rows are counted.
    ...(behind === 0 || rowFrames === null ? {} : { row_frames: rowFrames }),
  };
}

/** Where results of rows belong: those before row ``kept`` of the window are wrong and take the ``spare`` place. */
export interface Rest {
  readonly first: number;
  readonly kept: number;
  readonly spare: number;
}

/** The batch of the rows of a window from ``first`` on, of an encoder with a receptive field. */
export function restBatch(
  manifest: Pick<Manifest, "spec">,
  { rows, frames }: AudioWindow,
  { first, kept, spare }: Rest,
): Batch {
  const { row_elements: size } = audioOf(manifest);
  const own = { rows: rows - first, frames: frames.subarray(first * size), rowFrames: null };
  const places = Array.from({ length: own.rows }, (_, index) => first + index);
  return {
    ...windowBatch(manifest, own),
    source_positions: places,
    source_slots: places.map((place) => (place < kept ? spare : place)),
  };
}

/** The batch of one sequence with the sound to which it attends, the rows of a window but those behind it. */
export function attending(manifest: Sizes, batch: Batch, { rows }: Pick<AudioWindow, "rows">): Batch {
  const attended = rows - audioOf(manifest).rows_behind;
  const pages = Array.from({ length: Math.ceil(attended / manifest.page_size) }, (_, index) => index);
  return {
    ...batch,
    source_positions: batch.positions.map(() => attended - 1),
    source_page_indptr: [0, pages.length],
    source_page_ids: pages,
  };
}

/** The window of the self-test. `compiler/runtime/audio/windows.py` makes the same. */
export function testWindow(manifest: Pick<Manifest, "spec">): AudioWindow {
  const audio = audioOf(manifest);
  const { mel_bins: bins, positions, frames_of_row: perRow, hop_samples: hop } = audio;
  if (bins === 0) {
    const step = hop * perRow;
    const length = Math.min(TEST_ROWS, positions - 1) * step + Math.floor(step / 2);
    const samples = Float32Array.from(
      { length },
      (_, at) => ((31 * at + Math.floor(at / 7) * Math.floor(at / 64)) % 64) / 32 - 1,
    );
    return sampleWindow(audio, samples);
  }
  const rows = Math.min(TEST_ROWS, positions);
  const count = perRow * rows;
  const data = Float32Array.from({ length: bins * count }, (_, index) => {
    const [mel, frame] = [Math.floor(index / count), index % count];
    return ((31 * frame + 17 * mel + frame * mel) % 64) / 32 - 1;
  });
  return melWindow(audio, { data, bins, count }, { start: 0, own: count, rows });
}

/** Throws BundleError for a bundle that reads no sound. */
export function audioOf({ spec }: Pick<Manifest, "spec">): AudioSpec {
  if (spec.audio === null) throw new BundleError("manifest.json: spec.audio is null; compile the bundle again");
  return spec.audio;
}

type Tested = Pick<Runner, "manifest" | "limits" | "rows" | "features" | "forwardLogits" | "submit" | "choose">;

/** A runner for the self-test: its batches attend to the test's window, which the variants that are chosen compute. */
export function hearing(runner: Tested & Pick<Runner, "listen">): Tested {
  const { manifest, limits, rows } = runner;
  const window = testWindow(manifest);
  let heard: Promise<void> | null = null;
  const listened = (): Promise<void> => (heard ??= runner.listen(windowBatch(manifest, window)));
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
      return runner.forwardLogits(attending(manifest, batch, window));
    },
    submit: async (batch, options) => {
      await listened();
      return runner.submit(attending(manifest, batch, window), options);
    },
  };
}
