import { expect, test } from "vitest";

import { RaggedEncoder } from "../../src/encoders/ragged_encoder.js";
import { Gate } from "../../src/engine/gate.js";
import type { TextRunner } from "../../src/engine/step_runner.js";
import { DeviceError } from "../../src/errors.js";
import type { Batch } from "../../src/runtime/batch.js";

const LIMITS = { tokens: 20, sequences: 4, splitsTexts: false, groups: [], pageSize: 4, context: 12, vocabSize: 100 };

/** A text's result is (its first token, its number of tokens, the type of its last token), or with perToken each token. */
class TextsRunner implements TextRunner {
  readonly limits = LIMITS;
  readonly batches: Batch[] = [];

  constructor(
    private readonly perToken = false,
    private readonly fails = Infinity,
  ) {}

  async encode(batch: Batch): Promise<Float32Array> {
    this.batches.push(batch);
    await new Promise((resolve) => setTimeout(resolve));
    if (this.batches.length > this.fails) throw new DeviceError("the fake device is lost");
    if (this.perToken) return Float32Array.from(batch.token_ids.flatMap((id) => [id, 1]));
    return Float32Array.from(
      batch.seq_starts.slice(0, -1).flatMap((start, index) => {
        const end = batch.seq_starts[index + 1] ?? 0;
        return [batch.token_ids[start] ?? -1, end - start, batch.token_types?.[end - 1] ?? -1];
      }),
    );
  }
}

const noOther = (): Promise<TextRunner> => Promise.reject(new DeviceError("no other runner"));
const text = (length: number, first: number) => ({ ids: new Array<number>(length).fill(first) });
const lists = (results: readonly Float32Array[]): number[][] => results.map((result) => [...result]);

test("texts share batches within the limits, whole and without padding, with their types", async () => {
  const runner = new TextsRunner();
  const texts = [5, 12, 1, 1, 9, 3, 3, 3, 3, 3].map((length, index) => text(length, index + 1));
  const typed = { ids: [7, 7, 8], types: [0, 0, 1] };
  const results = await new RaggedEncoder(runner, false, noOther).encode([...texts, typed]);
  expect(lists(results)).toEqual([...texts.map(({ ids }) => [ids[0], ids.length, 0]), [7, 3, 1]]);
  for (const { token_ids, seq_starts, sample_rows, positions } of runner.batches) {
    expect(token_ids.length).toBeLessThanOrEqual(LIMITS.tokens);
    expect(seq_starts.length - 1).toBeLessThanOrEqual(LIMITS.sequences);
    expect(sample_rows.map((row) => row + 1)).toEqual(seq_starts.slice(1));
    expect(seq_starts.slice(0, -1).every((start) => positions[start] === 0)).toBe(true);
  }
  expect(runner.batches.length).toBe(3);
});

test("each token's results are those of its text", async () => {
  const results = await new RaggedEncoder(new TextsRunner(true), true, noOther).encode([{ ids: [4, 5] }, { ids: [6] }]);
  expect(lists(results)).toEqual([
    [4, 1, 5, 1],
    [6, 1],
  ]);
});

test("requests that are made at the same time share one batch", async () => {
  const runner = new TextsRunner();
  const encoder = new RaggedEncoder(runner, false, noOther);
  const results = await Promise.all([1, 2, 3, 4].map((first) => encoder.encode([text(2, first)])));
  expect(results.map((each) => each[0]?.[0])).toEqual([1, 2, 3, 4]);
  expect(runner.batches.length).toBe(1);
  expect(encoder.isBusy).toBe(false);
});

test("ten thousand texts stay within the limits, and a small request is answered among them", async () => {
  const runner = new TextsRunner();
  const encoder = new RaggedEncoder(runner, false, noOther);
  const large = encoder.encode(Array.from({ length: 10_000 }, (_, index) => text(1, index % 100)));
  await new Promise((resolve) => setTimeout(resolve, 5));
  const before = runner.batches.length;
  const [small] = await encoder.encode([text(2, 42)]);
  expect([...(small ?? [])]).toEqual([42, 2, 0]);
  expect(runner.batches.length - before).toBeLessThan(5);
  const results = await large;
  expect(results.every(([first], index) => first === index % 100)).toBe(true);
  expect(runner.batches.length).toBeLessThanOrEqual(10_001 / LIMITS.sequences + 2);
});

test("an aborted request ends at once, and no more batches are made of its texts", async () => {
  const runner = new TextsRunner();
  const encoder = new RaggedEncoder(runner, false, noOther);
  const controller = new AbortController();
  const aborted = encoder.encode(new Array<ReturnType<typeof text>>(1000).fill(text(1, 1)), controller.signal);
  const other = encoder.encode([text(3, 9)]);
  await new Promise((resolve) => setTimeout(resolve, 5));
  controller.abort(new Error("enough"));
  await expect(aborted).rejects.toThrow("enough");
  expect(lists(await other)).toEqual([[9, 3, 0]]);
  expect(encoder.isBusy).toBe(false);
  const made = runner.batches.length;
  await new Promise((resolve) => setTimeout(resolve, 10));
  expect(runner.batches.length - made).toBeLessThanOrEqual(1);
  expect(made).toBeLessThan(100);
  await expect(encoder.encode([text(1, 1)], controller.signal)).rejects.toThrow("enough");
});

test("a lost device is replaced once for all batches that fail on it", async () => {
  let replaced = 0;
  const over = (next: TextsRunner) =>
    new RaggedEncoder(new TextsRunner(false, 1), false, () => {
      replaced++;
      return Promise.resolve(next);
    });
  const texts = Array.from({ length: 20 }, (_, index) => text(2, index));
  expect(lists(await over(new TextsRunner()).encode(texts))).toEqual(texts.map(({ ids }) => [ids[0], 2, 0]));
  expect(replaced).toBe(1);
  await expect(over(new TextsRunner(false, 0)).encode(texts)).rejects.toThrow("the fake device is lost");
  await expect(new RaggedEncoder(new TextsRunner(false, 0), false, noOther).encode(texts)).rejects.toThrow("no other");
});

test("while the gate is closed, nothing is sent to the device", async () => {
  const runner = new TextsRunner();
  const gate = new Gate();
  const encoder = new RaggedEncoder(runner, false, noOther, gate);
  await gate.close();
  const results = encoder.encode([text(1, 3)]);
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect([runner.batches.length, encoder.isBusy]).toEqual([0, true]);
  gate.open();
  expect(lists(await results)).toEqual([[3, 1, 0]]);
});

test("results that are not numbers are an error of their own request only", async () => {
  const runner = new TextsRunner();
  const encoder = new RaggedEncoder(runner, false, noOther);
  const [wrong, right] = await Promise.allSettled([
    encoder.encode([text(1, 1), text(1, NaN)]),
    encoder.encode([text(2, 1)]),
  ]);
  expect(wrong).toMatchObject({ reason: { code: "device_error" } });
  expect(right).toMatchObject({ status: "fulfilled" });
  expect(runner.batches).toHaveLength(1);
});
