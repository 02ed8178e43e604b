// Sampling parameters from a request in OpenAI's form to the device: the setting for each parameter.

import { expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import { Completions } from "../../src/api/completions.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { IN_PROMPT } from "../../src/runtime/batch.js";
import type { Batch } from "../../src/runtime/batch.js";
import { fakeModel } from "../api/fake_model.js";
import { STOP, VOCAB } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";
import { mulberry32 } from "./mulberry32.js";

const LIMITS = {
  tokens: 8,
  sequences: 2,
  groups: [{ pages: 16, window: Infinity }],
  pageSize: 4,
  context: 64,
  vocabSize: VOCAB,
};
const PROMPT = [13, 2, 3, 13];
/** The column of a parameter's setting, and a value that float32 represents exactly. */
const COLUMNS = {
  temperature: [0, 0.5],
  top_k: [1, 7],
  top_p: [2, 0.75],
  min_p: [3, 0.125],
  repetition_penalty: [5, 1.5],
  frequency_penalty: [6, 0.25],
  presence_penalty: [7, -0.5],
} as const;
const SEED = 5;
const TOKENS = 3;

/**
 * Returns a runner that has received a request. The API builds the request, and the engine gets it with another
 * prompt.
 */
async function received(params: Record<string, unknown>, api: "chat" | "text"): Promise<FakeRunner> {
  const { model, source } = fakeModel("x");
  const all = { ...params, seed: SEED, max_tokens: TOKENS };
  if (api === "text") await new Completions(model).create({ prompt: "x", ...all });
  else await new ChatCompletions(model).create({ messages: [{ role: "user", content: "x" }], ...all });
  const [request] = source.requests;
  if (request === undefined) throw new Error("no request arrived");
  const runner = new FakeRunner(LIMITS);
  const engine = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [STOP] }, null);
  const tokens = engine.generateTokens({ ...request, promptIds: PROMPT, signal: undefined });
  while ((await tokens.next()).done !== true);
  return runner;
}

/** The settings (8,) of each sampled row, and its flags. */
function rowsOf(
  batches: readonly Batch[],
): readonly { readonly settings: readonly number[]; readonly flags: number }[] {
  return batches.flatMap(({ sample_rows, sample_settings, sample_slots }) =>
    sample_rows.map((_, row) => ({
      settings: sample_settings.slice(8 * row, 8 * row + 8),
      flags: sample_slots[2 * row + 1] ?? -1,
    })),
  );
}

const cases = (["chat", "text"] as const).flatMap((api) =>
  [undefined, ...(Object.keys(COLUMNS) as (keyof typeof COLUMNS)[])].map((name) => [api, name] as const),
);

test.each(cases)("%s: the parameter %s becomes one setting of each row", async (api, name) => {
  const expected: number[] = [1, 0, 1, 0, NaN, 1, 0, 0];
  const params: Record<string, number> = {};
  if (name !== undefined) expected[COLUMNS[name][0]] = params[name] = COLUMNS[name][1];
  const draw = mulberry32(SEED);
  const rows = rowsOf((await received(params, api)).batches);
  expect(rows.length).toBeGreaterThan(0);
  for (const { settings, flags } of rows) {
    expected[4] = draw();
    expect(settings).toEqual(expected);
    // Only penalties use the counts of the slot.
    expect(flags).toBe(name?.endsWith("penalty") === true ? 1 : 0);
  }
});

test.each([
  { temperature: 2, top_p: 1, top_k: -1, min_p: 1, frequency_penalty: 2, presence_penalty: 2 },
  { temperature: 0, top_p: 1e-30, top_k: 1, min_p: 0, frequency_penalty: -2, presence_penalty: -2 },
])("the engine accepts every bound of the API: %j", async (params) => {
  expect(rowsOf((await received(params, "text")).batches)).toHaveLength(TOKENS);
});

test("the API refuses a top_p of 0 by its own name", async () => {
  await expect(received({ top_p: 0 }, "text")).rejects.toThrow("top_p is 0, it must be a number above 0");
});

test("the bias and the prompt's tokens are written to the slot", async () => {
  const runner = await received({ logit_bias: { 5: -100, 7: 2.5 }, presence_penalty: 1 }, "chat");
  expect(rowsOf(runner.batches)[0]?.flags).toBe(1 | 2);
  const bias = new Array<number>(VOCAB).fill(0);
  [bias[5], bias[7]] = [-100, 2.5];
  expect([...runner.biases.values()].map((values) => [...values])).toEqual([bias]);
  const counts = [...runner.counts.values()].map((values) => [...values].map((count) => count & IN_PROMPT));
  const inPrompt = new Array<number>(VOCAB).fill(0);
  for (const id of PROMPT) inPrompt[id] = 65_536;
  expect(counts).toEqual([inPrompt]);
});
