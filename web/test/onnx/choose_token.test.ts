import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { drawAt } from "../../src/engine/resolved_sampling.js";
import type { SlotStates } from "../../src/onnx/choose_token.js";
import { adjustLogits, chooseToken, settingsAt } from "../../src/onnx/choose_token.js";
import { largest } from "../../src/onnx/largest.js";
import { IN_PROMPT, SAMPLE_FLAGS, settingsRow } from "../../src/runtime/batch.js";

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

const { cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/sampling.json", import.meta.url), "utf8"),
) as { cases: Case[] };

/** The slot states of a case, in the device's form. */
function statesOf({ logits, prompt = [], answer = [], bias = {}, allowed }: Case): SlotStates {
  const counts = new Int32Array(logits.length);
  for (const id of prompt) counts[id] = IN_PROMPT;
  for (const id of answer) counts[id] = (counts[id] ?? 0) + 1;
  const dense = new Float32Array(logits.length);
  for (const [id, value] of Object.entries(bias)) dense[Number(id)] = value;
  const mask = new Int32Array(Math.ceil(logits.length / 32));
  for (const id of allowed ?? logits.keys()) mask[id >> 5] = (mask[id >> 5] ?? 0) | (1 << (id & 31));
  return { counts, bias: dense, mask };
}

test.each(cases)("conformance: $name", (given) => {
  const { logits, temperature, seed, tokens } = given;
  const penalties = {
    repetitionPenalty: given.repetition_penalty,
    frequencyPenalty: given.frequency_penalty,
    presencePenalty: given.presence_penalty,
  };
  const filters = { topK: given.top_k, topP: given.top_p, minP: given.min_p };
  const found = tokens.map((_, index) => {
    const settings = settingsAt(settingsRow({ temperature, draw: drawAt(seed, index), ...penalties, ...filters }), 0);
    const { counts, bias, mask } = SAMPLE_FLAGS;
    return chooseToken(
      adjustLogits(Float32Array.from(logits), settings, counts | bias | mask, statesOf(given)),
      settings,
    );
  });
  expect(found).toEqual(tokens);
});

test("the largest values are found in order, and equal values in their original order", () => {
  const values = Float32Array.from([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]);
  expect([...largest(values, 5)]).toEqual([5, 7, 4, 8, 10]);
  expect([...largest(values, 99)]).toEqual([5, 7, 4, 8, 10, 2, 0, 9, 6, 1, 3]);
  expect([...largest(values, 0)]).toEqual([]);
});

test("a top_p that needs many tokens keeps the smallest set of most likely tokens", () => {
  const logits = Float32Array.from({ length: 1000 }, (_, id) => -((id * 7) % 1000) / 1000);
  const order = largest(logits, 1000);
  const weights = Array.from(order, (id) => Math.exp((logits[id] ?? 0) / 1));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  let reached = 0;
  const kept = weights.findIndex((weight) => (reached += weight) >= Math.fround(0.9) * sum) + 1;
  const allowed = new Set(order.slice(0, kept));
  const drawn = new Set<number>();
  for (let index = 0; index < 300; index++) {
    drawn.add(chooseToken(logits, settingsAt(settingsRow({ temperature: 1, topP: 0.9, draw: drawAt(3, index) }), 0)));
  }
  expect([...drawn].every((id) => allowed.has(id))).toBe(true);
  expect(chooseToken(logits, settingsAt(settingsRow({ temperature: 1, topP: 0.9, draw: 1 - 2 ** -24 }), 0))).toBe(
    Math.max(...allowed),
  );
});

// As a float32, the largest number of a generator is 1.
test.each([0, 1 - 2 ** -24, 1 - 2 ** -32])("the draw %d chooses a token that is kept", (draw) => {
  const settings = settingsAt(settingsRow({ temperature: 1, topK: 2, draw }), 0);
  expect(chooseToken(Float32Array.from([0, 3, 1, 2, 1]), settings)).toBe(draw === 0 ? 1 : 3);
});

test("a logit that is not a number gives no token", () => {
  expect(chooseToken(Float32Array.from([1, NaN, 2]), settingsAt(settingsRow({}), 0))).toBe(-1);
});
