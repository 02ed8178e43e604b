// The window of sound that the memory of a runner holds. `compiler/runtime/audio/listener.py` does the same.

import type { Manifest } from "../runtime/manifest.js";
import type { Runner } from "../runtime/runner.js";
import { rowsToRead } from "../shared/transcription/rows_to_read.js";
import { audioOf, restBatch, windowBatch } from "./hearing.js";
import type { AudioWindow } from "./readings.js";

type Hears = Partial<Pick<Runner, "listen">>;

/**
 * Of a window that begins as the last one did, an encoder with a receptive field reads the rows that change, and those on
 * which they depend. Their results are those of the whole window.
 */
export class Listener {
  /** What was read, and by which runner: another one's memory is empty. */
  #read: { readonly by: Hears; readonly window: AudioWindow } | null = null;

  constructor(private readonly manifest: Pick<Manifest, "spec" | "page_size">) {}

  /** Computes the keys and values of a window, to which all tokens attend until the next one. */
  async listen(runner: Hears, window: AudioWindow): Promise<void> {
    const { manifest } = this;
    const { row_elements: size, positions, receptive_field: field } = audioOf(manifest);
    // Older bundles have no such key.
    if (!field) {
      await runner.listen?.(windowBatch(manifest, window));
      return;
    }
    const { rows, frames } = window;
    const before = this.#read?.by === runner ? this.#read.window : null;
    // What a failure leaves is not known.
    this.#read = null;
    const same = before === null ? 0 : Math.floor(equalLength(before.frames, frames) / size);
    const room = Math.ceil(positions / manifest.page_size) * manifest.page_size;
    const { first, kept } = rowsToRead(field, { before: before?.rows ?? 0, rows, same, room });
    if (first < rows) await runner.listen?.(restBatch(manifest, window, { first, kept, spare: room - 1 }));
    this.#read = { by: runner, window };
  }
}

/** How many numbers at the start of both are equal. */
function equalLength(one: Float32Array, other: Float32Array): number {
  const compared = Math.min(one.length, other.length);
  for (let index = 0; index < compared; index++) if (one[index] !== other[index]) return index;
  return compared;
}
