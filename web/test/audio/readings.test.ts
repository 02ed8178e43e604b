// Windows of sound are those of Python.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { readingOf } from "../../src/audio/readings.js";
import type { AudioSpec } from "../../src/runtime/manifest.js";
import { pattern } from "./sound.js";

interface Window {
  readonly seek: number;
  readonly frames: number;
  readonly rows: number;
  readonly lastFrames: number | null;
  readonly numbers: readonly (readonly [number, number, number])[];
}
interface Case {
  readonly audio: string;
  readonly samples: number;
  readonly quiet: readonly (readonly [number, number])[];
  readonly isLong: boolean;
  readonly windows: readonly Window[];
}
const { audio, cases } = JSON.parse(readFileSync("../tests/conformance/sound_windows.json", "utf8")) as {
  audio: Readonly<Record<string, AudioSpec>>;
  cases: readonly Case[];
};

test.each(cases)("$samples samples, $audio", ({ audio: name, samples, quiet, isLong, windows }) => {
  const spec = audio[name];
  if (spec === undefined) throw new Error(`no audio ${name}`);
  const sound = pattern(samples);
  for (const [start, stop] of quiet)
    for (let at = start; at < stop; at++) sound[at] = Math.fround(Number(sound[at]) * Math.fround(0.001));
  const reading = readingOf(sound, spec, 1);
  expect(reading.isLong).toBe(isLong);
  let seek = 0;
  for (const window of windows) {
    const { frames, read } = reading.window(seek);
    expect([seek, frames, read.rows, read.rowFrames?.at(-1) ?? null]).toEqual([
      window.seek,
      window.frames,
      window.rows,
      window.lastFrames,
    ]);
    for (const [row, place, value] of window.numbers)
      expect(read.frames[row * spec.row_elements + place]).toBeCloseTo(value, 5);
    seek += frames;
  }
  expect(seek).toBe(reading.count);
});
