// Sounds of chats: from samples to the rows of frames that a model's tower reads, and their features.
// `compiler/runtime/audio/prepared_sound.py` computes the same rows.

import { BundleError } from "../errors.js";
import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import type { ImageSpec, ModelSpec, SoundSpec } from "../runtime/manifest.js";
import { soundKeyHead, soundLayout, wrongSounds } from "../shared/sounds.js";

type Hearing = NonNullable<ModelSpec["hearing"]>;

/** The most rows of the test; the smallest runner computes as many at once. `compiler/runtime/feature_test.py`. */
const ROWS = 48;

/** Throws BundleError for a spec that contradicts itself. */
export function requireSounds(spec: SoundSpec, images: ImageSpec | null, vocabSize = Infinity): void {
  const wrong = wrongSounds(spec, images, vocabSize);
  if (wrong !== null) throw new BundleError(`manifest.json: sounds.${wrong.join(" ")}; compile the bundle again`);
}

/**
 * A row of frames for each feature, row by row; the last frames are zeros if some are missing. Throws RequestError for a
 * sound that is too short or too long for the model.
 */
export function soundRows(spec: SoundSpec, samples: Float32Array): Float32Array {
  const { features } = soundLayout(spec, samples.length);
  const rows = new Float32Array(features * spec.frames * spec.samples);
  rows.set(samples);
  return rows;
}

/** The SHA-256 of a sound's samples and of how they are read, in hexadecimal digits. */
export async function soundKey(spec: SoundSpec, samples: Float32Array): Promise<string> {
  const head = new TextEncoder().encode(soundKeyHead(spec, samples.length));
  const bytes = new Uint8Array(head.length + samples.length * 4);
  bytes.set(head);
  const view = new DataView(bytes.buffer, head.length);
  for (const [index, sample] of samples.entries()) view.setFloat32(index * 4, sample, true);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The features of rows: all at once if the tower reads them whole, otherwise as many as every runner can. */
export async function soundFeatures(
  { row_elements: columns, whole }: Hearing,
  rows: Float32Array,
  features: (batch: Batch) => Promise<Float32Array>,
  signal: AbortSignal,
): Promise<Float32Array> {
  const count = rows.length / columns;
  const step = whole ? count : ROWS;
  const parts: Float32Array[] = [];
  for (let start = 0; start < count; start += step) {
    signal.throwIfAborted();
    parts.push(await features(soundBatch(rows.subarray(start * columns, (start + step) * columns), columns)));
  }
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const part of parts) all.set(part, (end += part.length) - part.length);
  return all;
}

/** A batch of rows of one sound. */
function soundBatch(frames: Float32Array, columns: number): Batch {
  const count = frames.length / columns;
  const positions = Array.from({ length: count }, (_, index) => index);
  return {
    ...emptyBatch(),
    token_ids: positions.map(() => 0),
    positions,
    slots: positions,
    seq_starts: [0, count],
    frames,
  };
}

/** The rows of the test of a tower that hears. `compiler/runtime/feature_test.py` makes the same. */
export function testSound({ row_elements: columns, sound_rows: most }: Hearing): Batch {
  const frames = Float32Array.from({ length: Math.min(ROWS, most) * columns }, (_, index) => {
    const [row, element] = [Math.floor(index / columns), index % columns];
    return ((31 * row + 17 * element + Math.floor((row * element) / 3)) % 41) / 20 - 1;
  });
  return soundBatch(frames, columns);
}
