import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { adjustLogits, mulberry32, sampleToken } from "./host_sampler.js";

interface Case {
  readonly name: string;
  readonly logits: readonly number[];
  readonly temperature: number;
  readonly seed: number;
  readonly top_k?: number;
  readonly top_p?: number;
  readonly min_p?: number;
  readonly repetition_penalty?: number;
  readonly frequency_penalty?: number;
  readonly presence_penalty?: number;
  readonly prompt?: readonly number[];
  readonly answer?: readonly number[];
  readonly bias?: Readonly<Record<string, number>>;
  readonly allowed?: readonly number[];
  readonly tokens: readonly number[];
}

const { cases } = JSON.parse(readFileSync(new URL("../../../tests/conformance/sampling.json", import.meta.url), "utf8")) as { cases: Case[] };

test.each(cases)("conformance: $name", ({ logits, temperature, seed, tokens, ...rest }) => {
  const settings = {
    temperature,
    topK: rest.top_k,
    topP: rest.top_p,
    minP: rest.min_p,
    repetitionPenalty: rest.repetition_penalty,
    frequencyPenalty: rest.frequency_penalty,
    presencePenalty: rest.presence_penalty,
  };
  const answerCounts = new Map<number, number>();
  for (const id of rest.answer ?? []) answerCounts.set(id, (answerCounts.get(id) ?? 0) + 1);
  const adjusted = adjustLogits(logits, settings, {
    inPrompt: new Set(rest.prompt),
    answerCounts,
    bias: new Map(Object.entries(rest.bias ?? {}).map(([id, value]) => [Number(id), value])),
    ...(rest.allowed === undefined ? {} : { allowed: new Set(rest.allowed) }),
  });
  const draw = mulberry32(seed);
  expect(tokens.map(() => sampleToken(adjusted, { ...settings, draw: draw() }))).toEqual(tokens);
});
