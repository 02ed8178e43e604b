import { expect, test } from "vitest";

import type { CallCounter } from "../../page/count_calls.js";
import type { TokenModel } from "../../page/measure.js";
import { measureCounts, measureDecode, measurePrefill, promptOf } from "../../page/measure.js";

const SIZES = { vocabSize: 509, context: 100 };
const { signal } = new AbortController();

/** Ends each answer after a number of tokens, and records its requests. */
function modelOf(
  mostTokens: number,
): TokenModel & { readonly asked: { readonly prompt: readonly number[]; readonly maxTokens: number }[] } {
  const asked: { prompt: readonly number[]; maxTokens: number }[] = [];
  return {
    asked,
    // oxlint-disable-next-line typescript/require-await
    async *continueTokens(prompt, maxTokens) {
      asked.push({ prompt, maxTokens });
      for (let count = 0; count < Math.min(mostTokens, maxTokens); count++) yield count;
    },
  };
}

test("prompts that do not fit the context are left out", async () => {
  const model = modelOf(10);
  const rows = await measurePrefill(model, SIZES, [16, 100, 101], 2, signal);
  expect(rows.map((row) => row.prompt_tokens)).toEqual([16, 100]);
  expect(model.asked.map(({ prompt, maxTokens }) => [prompt.length, maxTokens])).toEqual([
    [16, 1],
    [16, 1],
    [100, 1],
    [100, 1],
  ]);
});

test("a model with an empty answer has still read its prompt", async () => {
  const [row] = await measurePrefill(modelOf(0), SIZES, [16], 1, signal);
  expect(row?.time_to_first_token_ms).toBeGreaterThanOrEqual(0);
});

test("an answer that ends early is continued with another prompt", async () => {
  const model = modelOf(5);
  const [row] = await measureDecode(model, SIZES, [16], 10, signal);
  // Five tokens have four intervals, so nine intervals take three answers.
  expect(model.asked.map(({ maxTokens }) => maxTokens)).toEqual([10, 6, 2]);
  expect(row?.milliseconds.length).toBe(9);
});

test("a prompt is cut so that the answer fits the context", async () => {
  const rows = await measureDecode(modelOf(1000), SIZES, [16, 400, 1000], 20, signal);
  expect(rows.map((row) => row.prompt_tokens)).toEqual([16, 80]);
});

test("a model that always ends at once has no rows and no counts", async () => {
  const counter: CallCounter = {
    read: () => ({}) as never,
    bufferBytes: () => 0,
    writeMs: () => 0,
    stop: () => undefined,
  };
  expect(await measureDecode(modelOf(1), SIZES, [16], 10, signal)).toEqual([]);
  expect(await measureCounts(modelOf(1), SIZES, counter, 10, signal)).toBeNull();
});

test("the first token of an answer, with its prompt, is not counted", async () => {
  let calls = 0;
  const step = { submits: 0, passes: 0, bind_groups: 0, buffers: 0, write_buffers: 0, bytes_read_back: 0 };
  const counter: CallCounter = {
    read: () => ({ dispatches: calls, ...step }),
    bufferBytes: () => 0,
    writeMs: () => 0,
    stop: () => undefined,
  };
  const model: TokenModel = {
    // oxlint-disable-next-line typescript/require-await
    async *continueTokens(_, maxTokens) {
      calls += 100;
      for (let count = 0; count < maxTokens; count++) {
        calls += 7;
        yield count;
      }
    },
  };
  expect(await measureCounts(model, SIZES, counter, 3, signal)).toEqual({ dispatches: 7, ...step });
});

test("no run's prompt starts like another's", () => {
  const firsts = Array.from({ length: 5 }, (_, run) => promptOf(4, SIZES.vocabSize, run)[0]);
  expect(new Set(firsts).size).toBe(5);
  expect(promptOf(1000, 509, 3).every((id) => Number.isInteger(id) && id >= 0 && id < 509)).toBe(true);
});
