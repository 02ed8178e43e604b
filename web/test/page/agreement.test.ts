import { expect, test } from "vitest";

import { measureAgreement } from "../../page/agreement.js";
import type { SelfTestEntry } from "../../src/runtime/manifest.js";
import type { TokenModel } from "../../page/measure.js";

const { signal } = new AbortController();
const END = 99;

/** Answers a prompt of n tokens with ``answers[n - 1]`` and the tokens after it; END ends an answer. */
function modelOf(answers: readonly number[]): TokenModel {
  return {
    // oxlint-disable-next-line typescript/require-await
    async *continueTokens(prompt, maxTokens) {
      for (const id of answers.slice(prompt.length - 1, prompt.length - 1 + maxTokens)) {
        if (id === END) return;
        yield id;
      }
    },
  };
}

// After the first row, token 5 is far ahead. After the second, 6 and 7 differ by less than the tolerance. The third row
// ends the answer.
const SELF_TEST: SelfTestEntry = {
  prompt_ids: [1, 2, 3],
  rows: [
    { row: 0, token_ids: [5, 6], logits: [10, 1], logsumexp: 0 },
    { row: 1, token_ids: [6, 7, 8], logits: [4, 3.9, 1], logsumexp: 0 },
    { row: 2, token_ids: [END, 4], logits: [8, 1], logsumexp: 0 },
  ],
  tolerances: { float32: 0.001, float16: 0.01 },
};

test.each([
  ["the reference's tokens agree", "float32", [5, 6, END], 3],
  ["within the tolerance of float16 two tokens may swap", "float16", [5, 7, END], 3],
  ["within that of float32 they may not", "float32", [5, 7, END], 2],
  ["a token beyond the tolerance is wrong", "float16", [5, 8, END], 2],
  ["an answer that should have ended is wrong", "float32", [5, 6, 4], 2],
  ["an answer that ends too early is wrong", "float32", [END, 6, END], 2],
])("in a self-test, %s", async (_, activation, answers, agreed) => {
  const facts = { selfTest: SELF_TEST, endTokenIds: [END] };
  expect(await measureAgreement(modelOf(answers), facts, activation, null, signal)).toEqual({
    reference: "self_test",
    checked: 3,
    agreed,
  });
});

test("an expected answer agrees up to the first other token", async () => {
  const facts = { selfTest: null, endTokenIds: [] };
  const expected = { prompt_token_ids: [1], token_ids: [5, 6, 7, 8] };
  const found = (answers: readonly number[]) => measureAgreement(modelOf(answers), facts, "float32", expected, signal);
  expect(await found([5, 6, 7, 8])).toEqual({ reference: "expected", checked: 4, agreed: 4 });
  expect(await found([5, 6, 0, 8])).toEqual({ reference: "expected", checked: 4, agreed: 2 });
  expect(await found([5, END])).toEqual({ reference: "expected", checked: 4, agreed: 1 });
});

test("without a reference there is no agreement", async () => {
  expect(await measureAgreement(modelOf([1]), { selfTest: null, endTokenIds: [] }, "float32", null, signal)).toEqual({
    reference: "none",
  });
});
