import { expect, test } from "vitest";

import type { TokenOptions, TokenRunner } from "../../src/engine/generate_tokens.js";
import { generateTokens } from "../../src/engine/generate_tokens.js";
import { mulberry32 } from "../../src/engine/sampling.js";
import type { Batch } from "../../src/runtime/batch.js";
import { lettersBundle } from "../letters_bundle.js";

const { manifest } = lettersBundle();

/** Answers each token t with (t + 1) mod 8, and remembers its batches. */
function counter(batches: Batch[] = []): TokenRunner {
  const next = (batch: Batch): readonly number[] => {
    batches.push(batch);
    return batch.sample_rows.map((row) => ((batch.token_ids[row] ?? 0) + 1) % 8);
  };
  return {
    manifest,
    submit: (batch) => Promise.resolve({ tokenIds: Int32Array.from(next(batch)) }),
  };
}

async function collect(runner: TokenRunner, prompt: readonly number[], options: TokenOptions = {}): Promise<[number[], string]> {
  const tokens = generateTokens(runner, prompt, options);
  const ids: number[] = [];
  for (;;) {
    const { done, value } = await tokens.next();
    if (done === true) return [ids, value];
    ids.push(value);
  }
}

test("generation ends before a stop token", async () => {
  expect(await collect(counter(), [1])).toEqual([[2, 3, 4], "stop"]);
});

test("generation ends at maxTokens", async () => {
  expect(await collect(counter(), [6], { maxTokens: 3 })).toEqual([[7, 0, 1], "length"]);
});

test("generation ends where the context is full", async () => {
  const endless: TokenRunner = { ...counter(), manifest: { ...manifest, context: 20 }, submit: () => Promise.resolve({ tokenIds: Int32Array.of(1) }) };
  const [ids, reason] = await collect(endless, new Array<number>(18).fill(1));
  expect([ids.length, reason]).toEqual([3, "length"]);
});

test("a long prompt goes in chunks of 64, and only the last row of the last is sampled", async () => {
  const batches: Batch[] = [];
  await collect(counter(batches), new Array<number>(129).fill(1), { maxTokens: 2 });
  expect(batches.map((batch) => [batch.token_ids.length, batch.sample_rows])).toEqual([[64, []], [64, []], [1, [0]], [1, [0]]]);
  expect(batches[1]).toMatchObject({ seq_starts: [0, 64], page_indptr: [0, 8], page_ids: [0, 1, 2, 3, 4, 5, 6, 7] });
  expect(batches[3]).toMatchObject({ positions: [129], slots: [129], page_indptr: [0, 9] });
});

test("a temperature goes to the device with a new number for each token, the same for the same seed", async () => {
  const settings = async (options: TokenOptions): Promise<readonly (readonly number[])[]> => {
    const batches: Batch[] = [];
    await collect(counter(batches), [1], options);
    return batches.map((batch) => batch.sample_settings);
  };
  const drawn = await settings({ temperature: 4, seed: 9 });
  const numbers = mulberry32(9);
  expect(drawn).toEqual(drawn.map(() => [4, 0, 1, 0, numbers(), 1, 0, 0]));
  expect(await settings({})).toEqual(drawn.map(() => [0, 0, 1, 0, 0, 1, 0, 0]));
});

test("an aborted signal ends generation with its reason", async () => {
  const controller = new AbortController();
  const tokens = generateTokens(counter(), [6], { signal: controller.signal });
  await tokens.next();
  controller.abort();
  await expect(tokens.next()).rejects.toHaveProperty("name", "AbortError");
});

test.each([
  [[], {}, "The prompt is empty"],
  [[1, 8], {}, "Token 1 of the prompt is 8; token ids of this model are 0 to 7"],
  [[1.5], {}, "Token 0 of the prompt is 1.5"],
  [new Array<number>(257).fill(1), {}, "The prompt has 257 tokens, the bundle's context holds 256"],
  [[1], { maxTokens: 0 }, "maxTokens is 0"],
  [[1], { temperature: -1 }, "temperature is -1"],
  [[1], { seed: 2 ** 32 }, "seed is 4294967296"],
])("what is out of range is a RequestError: %#", async (prompt, options, message) => {
  const collecting = collect(counter(), prompt, options);
  await expect(collecting).rejects.toMatchObject({ code: "request_error", message: expect.stringContaining(message) as string });
});
