import { expect, test } from "vitest";

import { dimsOf } from "../../src/runtime/batch.js";

const batch = { token_ids: [1, 2, 3], positions: [0, 1, 30], slots: [0, 1, 62], page_ids: [0, 1, 3], sample_rows: [2] };

test("dims count tokens, sequences, sampled rows and listed pages, and know the longest context", () => {
  expect(dimsOf({ ...batch, seq_starts: [0, 2, 3], page_indptr: [0, 1, 3] }, 9)).toEqual({ S: 3, B: 2, R: 1, T: 31, L: 3, P: 9 });
});

test("a sequence without a new token is a RequestError", () => {
  expect(() => dimsOf({ ...batch, seq_starts: [0, 2, 2, 3], page_indptr: [0, 1, 1, 3] }, 9)).toThrow("sequence 1 has no new token");
});
