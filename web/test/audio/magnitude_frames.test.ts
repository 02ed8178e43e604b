// The frames of sound that Gemma 4 reads, against those of transformers' extractor (tests/sound_oracle.py).

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { magnitudeFrames } from "../../src/audio/magnitude_frames.js";
import { soundKey, soundRows } from "../../src/images/sounds.js";
import type { SoundSpec } from "../../src/runtime/manifest.js";
import { soundLayout } from "../../src/shared/sounds.js";
import { pattern } from "./sound.js";

interface Case {
  readonly name: string;
  readonly samples: number;
  readonly quiet: number;
  readonly bins: number;
  readonly mean: number;
  readonly numbers: readonly (readonly [bin: number, frame: number, value: number])[];
}

const { cases } = JSON.parse(readFileSync("../tests/conformance/magnitude_frames.json", "utf8")) as {
  cases: readonly Case[];
};

function specOf(bins: number): SoundSpec {
  const texts = { start: "(", whole: "", tile: "", row_end: "", overview: "", end: ")" };
  const prompt = { mark: "m", placeholder: "p", placeholder_id: 1, ...texts };
  const mel = { bins, window: 320, hop: 160, points: 512, floor: 1e-3 };
  return { samples: 160, frames: 4, mel, most: 480_000, prompt };
}

const { cases: keys } = JSON.parse(readFileSync("../tests/conformance/sound_keys.json", "utf8")) as {
  cases: readonly { readonly samples: number; readonly bins: number; readonly key: string }[];
};

test.each(keys)("the key of $samples samples is that of Python", async ({ samples, bins, key }) => {
  expect(await soundKey(specOf(bins), pattern(samples))).toBe(key);
});

test.each(cases)("frames are those of transformers: $name, $bins", ({ samples, quiet, bins, mean, numbers }) => {
  const sound = pattern(samples).map((sample, index) => (index < quiet ? sample * Math.fround(0.001) : sample));
  const spec = specOf(bins);
  const { frames: count, features } = soundLayout(spec, samples);
  const { frames, rowFrames } = soundRows(spec, sound, { magnitudeFrames });
  expect([frames.length, rowFrames.length]).toEqual([features * 4 * bins, features]);
  expect(rowFrames.reduce((sum, each) => sum + each, 0)).toBe(count);
  expect(frames.subarray(count * bins).every((value) => value === 0)).toBe(true);
  const own = frames.subarray(0, count * bins);
  expect(Math.abs(own.reduce((sum, value) => sum + value, 0) / own.length - mean)).toBeLessThan(1e-5);
  for (const [bin, frame, value] of numbers)
    expect([bin, frame, Math.abs(Number(frames[frame * bins + bin]) - value) < 1e-5]).toEqual([bin, frame, true]);
});
