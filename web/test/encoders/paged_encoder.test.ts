import { expect, test } from "vitest";

import { PagedEncoder } from "../../src/encoders/paged_encoder.js";
import { Gate } from "../../src/engine/gate.js";
import type { TextRunner } from "../../src/engine/step_runner.js";
import { DeviceError } from "../../src/errors.js";
import type { Batch } from "../../src/runtime/batch.js";
import { VOCAB, nextToken } from "../engine/fake_model.js";
import { FakeRunner } from "../engine/fake_runner.js";

const LIMITS = {
  tokens: 8,
  sequences: 3,
  states: 3,
  groups: [{ pages: 6, window: Infinity }],
  pageSize: 4,
  context: 24,
  vocabSize: 100,
};

/**
 * A runner whose pages hold token ids, and whose states hold sums of them. A text's vector is (the number of its tokens,
 * their sum, the first token, the sum that its state has).
 */
class PageRunner implements TextRunner {
  readonly limits = LIMITS;
  readonly batches: Batch[] = [];
  readonly #cells = new Int32Array(6 * LIMITS.pageSize);
  readonly #sums = new Int32Array(LIMITS.sequences);

  constructor(private readonly fails = Infinity) {}

  async encode(batch: Batch): Promise<Float32Array> {
    this.batches.push(batch);
    batch.slots.forEach((slot, row) => (this.#cells[slot] = batch.token_ids[row] ?? -1));
    const slots = batch.state_slots ?? [];
    const sums = batch.seq_starts.slice(1).map((end, sequence) => {
      const start = batch.seq_starts[sequence] ?? 0;
      const before = batch.positions[start] === 0 ? 0 : (this.#sums[slots[2 * sequence] ?? -1] ?? NaN);
      return batch.token_ids.slice(start, end).reduce((sum, id) => sum + id, before);
    });
    sums.forEach((sum, sequence) => (this.#sums[slots[2 * sequence + 1] ?? -1] = sum));
    const vectors = batch.sample_rows.flatMap((row) => {
      const sequence = batch.seq_starts.filter((start) => start <= row).length - 1;
      const pages = batch.page_ids.slice(batch.page_indptr[sequence], batch.page_indptr[sequence + 1]);
      const length = (batch.positions[row] ?? 0) + 1;
      const ids = pages
        .flatMap((page) => [...this.#cells.subarray(page * LIMITS.pageSize, (page + 1) * LIMITS.pageSize)])
        .slice(0, length);
      return [length, ids.reduce((sum, id) => sum + id, 0), ids[0] ?? -1, sums[sequence] ?? NaN];
    });
    await Promise.resolve();
    if (this.batches.length > this.fails) throw new DeviceError("the fake device is lost");
    return Float32Array.from(vectors);
  }
}

const noOther = (): Promise<TextRunner> => Promise.reject(new Error("no other runner"));
const text = (length: number, first: number): number[] => Array.from({ length }, (_, index) => (first + index) % 100);
const TEXTS: readonly (readonly number[])[] = [
  text(3, 1),
  text(24, 2),
  text(1, 50),
  text(13, 7),
  text(4, 90),
  text(8, 3),
  text(5, 0),
];
const VECTORS = TEXTS.map((ids) => {
  const sum = ids.reduce((before, id) => before + id, 0);
  return [ids.length, sum, ids[0] ?? -1, sum];
});

const asTexts = (ids: readonly (readonly number[])[]) => ids.map((each) => ({ ids: each }));
const lists = (vectors: readonly Float32Array[]): number[][] => vectors.map((vector) => [...vector]);

test("texts of any length share batches and pages within the limits", async () => {
  const runner = new PageRunner();
  expect(lists(await new PagedEncoder(runner, noOther).encode(asTexts(TEXTS)))).toEqual(VECTORS);
  for (const { token_ids, seq_starts, page_ids, state_slots } of runner.batches) {
    expect(token_ids.length).toBeLessThanOrEqual(LIMITS.tokens);
    expect(seq_starts.length - 1).toBeLessThanOrEqual(LIMITS.sequences);
    expect(new Set(page_ids).size).toBe(page_ids.length);
    expect(new Set(state_slots).size).toBe(seq_starts.length - 1);
  }
  const tokens = TEXTS.flat().length;
  expect(runner.batches.length).toBeLessThan(tokens / LIMITS.tokens + TEXTS.length);
});

test("texts that are longer than the window use its pages again", async () => {
  const groups = [
    { pages: 12, window: Infinity },
    { pages: 16, window: 5 },
  ];
  for (const own of [groups, groups.slice(1)]) {
    const limits = { ...LIMITS, groups: own, states: 0, context: 48, vocabSize: VOCAB };
    const runner = new FakeRunner(limits);
    const encode = async (batch: Batch): Promise<Float32Array> =>
      Float32Array.from((await runner.submit(batch)).tokenIds);
    const texts = [48, 3, 30, 11, 47].map((length, first) => text(length, first).map((id) => id % VOCAB));
    const vectors = await new PagedEncoder({ limits, encode }, noOther).encode(asTexts(texts));
    expect(lists(vectors)).toEqual(texts.map((ids) => [nextToken(ids)]));
  }
});

test("while the gate is closed, nothing is sent to the device", async () => {
  const runner = new PageRunner();
  const gate = new Gate();
  const encoder = new PagedEncoder(runner, noOther, gate);
  await gate.close();
  const vectors = encoder.encode(asTexts(TEXTS));
  await new Promise((resolve) => setTimeout(resolve, 10));
  expect([runner.batches.length, encoder.isBusy]).toEqual([0, true]);
  gate.open();
  expect(lists(await vectors)).toEqual(VECTORS);
});

test("simultaneous requests are answered one after the other; the engine is busy until the last", async () => {
  const encoder = new PagedEncoder(new PageRunner(), noOther);
  const both = Promise.all([encoder.encode(asTexts(TEXTS)), encoder.encode(asTexts([...TEXTS].reverse()))]);
  expect(encoder.isBusy).toBe(true);
  const [one, other] = await both;
  expect(lists(one)).toEqual(VECTORS);
  expect(lists(other)).toEqual([...VECTORS].reverse());
  expect(encoder.isBusy).toBe(false);
});

test("a lost device is replaced once", async () => {
  let replaced = 0;
  const encoder = (next: () => PageRunner): PagedEncoder => {
    return new PagedEncoder(new PageRunner(2), () => {
      replaced++;
      return Promise.resolve(next());
    });
  };
  expect(lists(await encoder(() => new PageRunner()).encode(asTexts(TEXTS)))).toEqual(VECTORS);
  expect(replaced).toBe(1);
  await expect(encoder(() => new PageRunner(0)).encode(asTexts(TEXTS))).rejects.toThrow("the fake device is lost");
});

test("an aborted request ends with the signal's reason, and the next request is answered", async () => {
  const encoder = new PagedEncoder(new PageRunner(), noOther);
  const controller = new AbortController();
  const aborted = encoder.encode(asTexts(TEXTS), controller.signal);
  const next = encoder.encode(asTexts(TEXTS));
  controller.abort(new Error("enough"));
  await expect(aborted).rejects.toThrow("enough");
  expect(lists(await next)).toEqual(VECTORS);
});

test("vectors that are not numbers are an error, for which no device is replaced", async () => {
  const runner = new PageRunner();
  runner.encode = () => Promise.resolve(Float32Array.of(1, NaN));
  await expect(new PagedEncoder(runner, noOther).encode([{ ids: [1] }])).rejects.toThrow("not numbers");
});
