import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { mulberry32, sampleToken } from "../../src/engine/sampling.js";

interface Case {
  readonly name: string;
  readonly logits: readonly number[];
  readonly temperature: number;
  readonly seed: number;
  readonly tokens: readonly number[];
}

const { cases } = JSON.parse(readFileSync(new URL("../../../tests/conformance/sampling.json", import.meta.url), "utf8")) as { cases: Case[] };

test.each(cases)("conformance: $name", ({ logits, temperature, seed, tokens }) => {
  const draw = mulberry32(seed);
  expect(tokens.map(() => sampleToken(logits, temperature, draw()))).toEqual(tokens);
});

test("logits that are not numbers are an error, never a token", () => {
  expect(() => sampleToken([1, NaN, 2], 1, 0.5)).toThrow("logits that are not numbers");
});
