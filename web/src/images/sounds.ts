// Sounds of chats: from samples to the rows of frames that a model's tower reads, and their features.
// `compiler/runtime/audio/prepared_sound.py` computes the same rows.

import type * as audio from "../audio/index.js";
import { BundleError } from "../errors.js";
import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import type { ImageSpec, ModelSpec, SoundSpec } from "../runtime/manifest.js";
import { soundKeyHead, soundLayout, wrongSounds } from "../shared/sounds.js";

type Hearing = NonNullable<ModelSpec["hearing"]>;

/** The most rows of the test; the smallest runner computes as many at once. `compiler/runtime/feature_test.py`. */
const ROWS = 48;
/** Of a tower that reads sounds whole, in its test. */
const FRAMES_OF_ROW = 4;

/** Throws BundleError for a spec that contradicts itself. */
export function requireSounds(spec: SoundSpec, images: ImageSpec | null, vocabSize = Infinity): void {
  const wrong = wrongSounds(spec, images, vocabSize);
  if (wrong !== null) throw new BundleError(`manifest.json: sounds.${wrong.join(" ")}; compile the bundle again`);
}

/** What audio.js has for them. */
export type SoundTools = Pick<typeof audio, "readSound" | "magnitudeFrames">;

/** The frames of a sound, a row (features, elements) for each feature, and how many of each row's frames exist. */
export interface SoundRows {
  readonly frames: Float32Array;
  readonly rowFrames: readonly number[];
}

/**
 * Frames that are missing in the last row are zeros. Throws RequestError for a sound that is too short or too long for the
 * model.
 */
export function soundRows(
  spec: SoundSpec,
  samples: Float32Array,
  { magnitudeFrames }: Pick<SoundTools, "magnitudeFrames">,
): SoundRows {
  const { features, frames: count } = soundLayout(spec, samples.length);
  const frames = new Float32Array(features * spec.frames * (spec.mel?.bins ?? spec.samples));
  frames.set(spec.mel === null ? samples : magnitudeFrames(spec.mel, samples, count));
  const rowFrames = Array.from({ length: features }, (_, row) => Math.min(spec.frames, count - row * spec.frames));
  return { frames, rowFrames };
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
  { frames, rowFrames }: SoundRows,
  features: (batch: Batch) => Promise<Float32Array>,
  signal: AbortSignal,
): Promise<Float32Array> {
  if (whole) return features(soundBatch(frames, columns, rowFrames));
  const count = frames.length / columns;
  const parts: Float32Array[] = [];
  for (let start = 0; start < count; start += ROWS) {
    signal.throwIfAborted();
    parts.push(await features(soundBatch(frames.subarray(start * columns, (start + ROWS) * columns), columns)));
  }
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const part of parts) all.set(part, (end += part.length) - part.length);
  return all;
}

/** A batch of rows of one sound. ``row_frames``: for models whose rows have several frames. */
function soundBatch(frames: Float32Array, columns: number, row_frames?: readonly number[]): Batch {
  const count = frames.length / columns;
  const positions = Array.from({ length: count }, (_, index) => index);
  const batch = { ...emptyBatch(), token_ids: positions.map(() => 0), positions, slots: positions, frames };
  return { ...batch, seq_starts: [0, count], ...(row_frames && { row_frames }) };
}

/** The rows of the test of a tower that hears. `compiler/runtime/feature_test.py` makes the same. */
export function testSound({ row_elements: columns, sound_rows: most, whole }: Hearing): Batch {
  const count = Math.min(ROWS, most);
  const frames = Float32Array.from({ length: count * columns }, (_, index) => {
    const [row, element] = [Math.floor(index / columns), index % columns];
    return ((31 * row + 17 * element + Math.floor((row * element) / 3)) % 41) / 20 - 1;
  });
  // If rows have several frames, the last one has one.
  const rowFrames = Array.from({ length: count }, (_, row) => (row === count - 1 ? 1 : FRAMES_OF_ROW));
  return soundBatch(frames, columns, whole ? rowFrames : undefined);
}
