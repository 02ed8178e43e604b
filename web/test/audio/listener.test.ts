// Which rows of a window are read after one that began in the same way, and what becomes of them.

import { expect, test } from "vitest";

import { windowBatch } from "../../src/audio/hearing.js";
import { Listener } from "../../src/audio/listener.js";
import { sampleWindow } from "../../src/audio/readings.js";
import { DeviceError } from "../../src/errors.js";
import type { Batch } from "../../src/runtime/batch.js";
import type { AudioSpec, Manifest } from "../../src/runtime/manifest.js";
import { rowsToRead } from "../../src/shared/transcription/rows_to_read.js";
import { pattern } from "./sound.js";

const [SIZE, BACK, AHEAD] = [4, 3, 2];
const AUDIO = {
  mel_bins: 0,
  frame_samples: 2,
  hop_samples: 2,
  frames_of_row: 2,
  row_elements: SIZE,
  positions: 30,
  rows_behind: 0,
  receptive_field: { back: BACK, ahead: AHEAD },
} as unknown as AudioSpec;
const manifestOf = (audio: AudioSpec): Manifest => ({ page_size: 16, spec: { audio } }) as unknown as Manifest;

/** A runner whose encoder adds up the samples of the rows in the receptive field of each, and whether all are there. */
class Sums {
  readonly counts: number[] = [];
  readonly memory = new Map<number, number>();
  fails = false;

  async listen({ source_positions: places = [], source_slots: slots = [], frames = new Float32Array() }: Batch) {
    await Promise.resolve();
    if (this.fails) throw new DeviceError("lost");
    this.counts.push(places.length);
    const sums = places.map((_, row) =>
      frames.subarray(row * SIZE, (row + 1) * SIZE).reduce((sum, each) => sum + each),
    );
    for (const [row, slot] of slots.entries())
      this.memory.set(
        slot,
        sums.slice(Math.max(0, row - BACK), row + AHEAD + 1).reduce((sum, each) => sum + each),
      );
  }

  /** The results of the rows of a window. */
  rows(count: number): readonly (number | undefined)[] {
    return Array.from({ length: count }, (_, row) => this.memory.get(row));
  }
}

const SOUND = pattern(SIZE * 30);
const windowOf = (samples: number, audio = AUDIO) => sampleWindow(audio, SOUND.subarray(0, samples));

test("results are those of the whole window, for sound that grows by any number of samples", async () => {
  for (let step = 1; step <= 3 * SIZE; step++) {
    const [sums, listener] = [new Sums(), new Listener(manifestOf(AUDIO))];
    for (let length = 1; length <= SOUND.length; length += step) {
      const window = windowOf(length);
      const whole = new Sums();
      await listener.listen(sums, window);
      await whole.listen(windowBatch(manifestOf(AUDIO), window));
      expect(sums.rows(window.rows)).toEqual(whole.rows(window.rows));
    }
    expect(Math.max(...sums.counts)).toBeLessThanOrEqual(BACK + AHEAD + 1 + Math.ceil(step / SIZE));
  }
});

test("rows that change are read, and those on which they depend", async () => {
  const [sums, listener] = [new Sums(), new Listener(manifestOf(AUDIO))];
  for (const rows of [12, 12, 15, 10]) await listener.listen(sums, windowOf(rows * SIZE));
  expect(sums.counts).toEqual([12, BACK + AHEAD + 3, BACK + AHEAD]);
  // Another sound.
  await listener.listen(
    sums,
    sampleWindow(
      AUDIO,
      pattern(12 * SIZE).map((each) => -each),
    ),
  );
  expect(sums.counts.at(-1)).toBe(12);
});

test("the whole window is read after a failure, and by another runner", async () => {
  const [sums, listener, other] = [new Sums(), new Listener(manifestOf(AUDIO)), new Sums()];
  await listener.listen(sums, windowOf(12 * SIZE));
  sums.fails = true;
  await expect(listener.listen(sums, windowOf(14 * SIZE))).rejects.toThrow(DeviceError);
  sums.fails = false;
  await listener.listen(sums, windowOf(14 * SIZE));
  await listener.listen(other, windowOf(14 * SIZE));
  expect([sums.counts, other.counts]).toEqual([[12, 14], [14]]);
});

test("an encoder without a receptive field reads each window whole", async () => {
  for (const receptive_field of [null, undefined]) {
    const audio = { ...AUDIO, receptive_field } as unknown as AudioSpec;
    const [sums, listener] = [new Sums(), new Listener(manifestOf(audio))];
    for (const rows of [12, 12, 15]) await listener.listen(sums, windowOf(rows * SIZE, audio));
    expect(sums.counts).toEqual([12, 12, 15]);
  }
});

test("without a place for wrong rows, a window is read whole", () => {
  const field = { back: BACK, ahead: AHEAD };
  expect(rowsToRead(field, { before: 20, rows: 31, same: 20, room: 32 })).toEqual({ first: 15, kept: 18 });
  expect(rowsToRead(field, { before: 20, rows: 32, same: 20, room: 32 })).toEqual({ first: 0, kept: 0 });
});
