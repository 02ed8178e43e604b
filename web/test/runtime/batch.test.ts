import { expect, test } from "vitest";

import { SAMPLE_FLAGS, dimsOf, sampledRows, settingsRow } from "../../src/runtime/batch.js";
import { DIMS } from "../../src/runtime/manifest.js";

const batch = {
  token_ids: [1, 2, 3],
  positions: [0, 1, 30],
  slots: [0, 1, 62],
  page_ids: [0, 1, 3],
  sample_rows: [2],
  sample_slots: [0, 0],
  sample_settings: settingsRow({}),
};
const CAPACITY = { P: 9, N: 4 };

test("a manifest may name every dim of a batch", () => {
  const dims = dimsOf({ ...batch, seq_starts: [0, 2, 3], page_indptr: [0, 1, 3] }, CAPACITY, false);
  expect(DIMS).toEqual(expect.arrayContaining(Object.keys(dims)));
});

test("dims contain the numbers of tokens, sequences, sampled rows and listed pages, and the longest context", () => {
  const whole = { ...batch, seq_starts: [0, 2, 3], page_indptr: [0, 1, 3] };
  expect(dimsOf(whole, CAPACITY, false)).toEqual({
    S: 3,
    B: 2,
    R: 1,
    T: 31,
    L: 3,
    LW: 0,
    LS: 0,
    A: 0,
    W: 0,
    DR: 0,
    H: 0,
    G: 0,
    ...CAPACITY,
    V: 0,
    I: 0,
    F: 0,
    C: 0,
  });
  expect(dimsOf({ ...whole, sample_settings: settingsRow({ temperature: 0.5 }) }, CAPACITY, false)).toMatchObject({
    DR: 1,
  });
  // Only the first column counts.
  expect(dimsOf({ ...whole, sample_settings: settingsRow({ topK: 5 }) }, CAPACITY, false)).toMatchObject({ DR: 0 });
  expect(dimsOf({ ...whole, sample_slots: [0, SAMPLE_FLAGS.bias] }, CAPACITY, true)).toMatchObject({ A: 1, W: 1 });
  expect(dimsOf({ ...whole, adapters: [-1, -1, -1] }, CAPACITY, false)).toMatchObject({ G: 0 });
  // One token with an adapter is enough for all rows.
  expect(dimsOf({ ...whole, adapters: [-1, -1, 0] }, CAPACITY, false)).toMatchObject({ G: 3 });
});

test("each sampled row is a sequence of one row on the pages of its sequence", () => {
  const rows = { ...batch, seq_starts: [0, 2, 3], page_indptr: [0, 1, 3] };
  const windowed = { ...rows, window_page_indptr: [0, 1, 4] };
  expect(sampledRows(windowed)).toEqual({
    sample_positions: [30],
    sample_starts: [0, 1],
    sample_page_indptr: [1, 3],
    window_sample_page_indptr: [1, 4],
  });
  expect(sampledRows({ ...rows, sample_rows: [0, 1, 2] })).toEqual({
    sample_positions: [0, 1, 30],
    sample_starts: [0, 1, 2, 3],
    sample_page_indptr: [0, 0, 1, 3],
    window_sample_page_indptr: [0, 0, 0, 0],
  });
  expect(sampledRows({ ...windowed, sample_rows: [] })).toEqual({
    sample_positions: [],
    sample_starts: [0],
    sample_page_indptr: [3],
    window_sample_page_indptr: [4],
  });
});

test("a sequence without a new token is a RequestError", () => {
  expect(() => dimsOf({ ...batch, seq_starts: [0, 2, 2, 3], page_indptr: [0, 1, 1, 3] }, CAPACITY, false)).toThrow(
    "sequence 1 has no new token",
  );
});
