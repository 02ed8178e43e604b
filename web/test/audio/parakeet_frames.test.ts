// The frames of sound that Parakeet reads, against those of transformers' extractor (tests/sound_oracle.py).

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { parakeetFrames } from "../../src/audio/parakeet_frames.js";
import { RequestError } from "../../src/errors.js";
import { pattern } from "./sound.js";

interface Case {
  readonly name: string;
  readonly samples: number;
  readonly quiet: number;
  readonly bins: number;
  readonly numbers: readonly (readonly [bin: number, frame: number, value: number])[];
}

const { cases } = JSON.parse(readFileSync("../tests/conformance/parakeet_frames.json", "utf8")) as {
  cases: readonly Case[];
};

test.each(cases)("frames are those of transformers: $name, $bins", ({ samples, quiet, bins, numbers }) => {
  const sound = pattern(samples).map((sample, index) => (index < quiet ? sample * Math.fround(0.001) : sample));
  const { data, count } = parakeetFrames(sound, bins);
  expect([data.length, count]).toEqual([bins * Math.floor(samples / 160), Math.floor(samples / 160)]);
  for (const [bin, frame, value] of numbers)
    expect([bin, frame, Math.abs(Number(data[bin * count + frame]) - value) < 1e-4]).toEqual([bin, frame, true]);
});

test("silence has no energy anywhere", () => {
  expect(parakeetFrames(new Float32Array(4000), 80).data.every((value) => Math.abs(value) < 1e-3)).toBe(true);
});

test("samples that are no numbers are refused", () => {
  expect(() => parakeetFrames(new Float32Array(4000).fill(NaN, 7, 8), 80)).toThrow(RequestError);
});
