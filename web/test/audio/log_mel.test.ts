// The frames of sound, against those of transformers' extractor (tests/sound_oracle.py).

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { logMel } from "../../src/audio/log_mel.js";
import { RequestError } from "../../src/errors.js";
import { pattern } from "./sound.js";

interface Case {
  readonly name: string;
  readonly samples: number;
  readonly quiet: number;
  readonly bins: number;
  readonly mean: number;
  readonly numbers: readonly (readonly [bin: number, frame: number, value: number])[];
}

const { cases } = JSON.parse(readFileSync("../tests/conformance/log_mel.json", "utf8")) as { cases: readonly Case[] };

test.each(cases)("frames are those of transformers: $name, $bins", ({ samples, quiet, bins, mean, numbers }) => {
  const sound = pattern(samples).map((sample, index) => (index < quiet ? sample * Math.fround(0.001) : sample));
  const { data, count } = logMel(sound, bins);
  expect([data.length, count]).toEqual([bins * Math.floor(samples / 160), Math.floor(samples / 160)]);
  expect(Math.abs(data.reduce((sum, value) => sum + value, 0) / data.length - mean)).toBeLessThan(1e-5);
  for (const [bin, frame, value] of numbers)
    expect([bin, frame, Math.abs(Number(data[bin * count + frame]) - value) < 1e-5]).toEqual([bin, frame, true]);
});

test("silence is the least number everywhere", () => {
  const { data } = logMel(new Float32Array(4000), 80);
  expect(new Set(data)).toEqual(new Set([-1.5]));
});

test.each([
  ["few samples", new Float32Array(200), 80, /200 samples are too few/],
  ["no samples", new Float32Array(), 80, /0 samples are too few/],
  ["a sample that is no number", new Float32Array(4000).fill(NaN, 7, 8), 80, /not finite/],
  ["an infinite sample", new Float32Array(4000).fill(Infinity, 3999), 80, /not finite/],
  ["no bins", new Float32Array(4000), 0, /0 mel bins/],
  ["too many bins", new Float32Array(4000), 129, /129 mel bins/],
])("%s: refused by name", (_, samples, bins, message) => {
  const run = (): unknown => logMel(samples, bins);
  expect(run).toThrow(RequestError);
  expect(run).toThrow(message);
});
