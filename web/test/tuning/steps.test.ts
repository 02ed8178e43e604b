// The chunk that is chosen on a runner without a device, whose steps take the time that the test sets.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { Batch } from "../../src/runtime/batch.js";
import type { Choices } from "../../src/runtime/choices.js";
import { NO_CHOICES } from "../../src/runtime/choices.js";
import type { AdapterEntry, TuningEntry } from "../../src/runtime/manifest.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import type { StepResult } from "../../src/runtime/results.js";
import type { TuneOptions } from "../../src/tuning/index.js";
import { tuning } from "../../src/tuning/index.js";
import type { SteppedRunner } from "../../src/tuning/steps.js";
import { chooseChunk } from "../../src/tuning/steps.js";
import { lettersBundle } from "../letters_bundle.js";

const LIMITS: RunnerLimits = {
  tokens: 512,
  chunk: 64,
  sequences: 4,
  groups: [
    { pages: 300, window: Infinity },
    { pages: 40, window: 100 },
  ],
  pageSize: 16,
  context: 4096,
  vocabSize: 8,
};

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

class SteppedFake implements SteppedRunner {
  readonly stepsInFlight = 8;
  chunk = 64;
  /** The tokens for which there are buffers. */
  room = 64;
  readonly batches: Batch[] = [];

  /** ``ms`` of a step of ``tokens``; ``most`` tokens fit the memory. */
  constructor(
    private readonly ms: (tokens: number, run: number) => number,
    readonly limits = LIMITS,
    private readonly most = Infinity,
  ) {}

  submit(batch: Batch): Promise<StepResult> {
    const tokens = batch.token_ids.length;
    expect(tokens).toBeLessThanOrEqual(this.room);
    vi.advanceTimersByTime(this.ms(tokens, this.batches.push(batch)));
    return Promise.resolve({ tokenIds: new Int32Array(), logprobs: null, alternatives: null });
  }

  resize(tokens: number): Promise<boolean> {
    if (tokens <= this.most) this.room = tokens;
    return Promise.resolve(tokens <= this.most);
  }

  get measured(): readonly number[] {
    return [...new Set(this.batches.map(({ token_ids }) => token_ids.length))];
  }
}

const options = (changes: Partial<TuneOptions> = {}): TuneOptions => ({
  choices: NO_CHOICES,
  pages: [299, 39, 2],
  idle: () => Promise.resolve(),
  signal: new AbortController().signal,
  ...changes,
});

/** Milliseconds of a step by its tokens. */
const times =
  (of: Readonly<Record<number, number>>) =>
  (tokens: number): number =>
    of[tokens] ?? NaN;

test.each([
  ["every step is short", { 64: 10, 128: 15, 256: 25, 512: 45 }, 512, [64, 128, 256, 512]],
  ["the longest ones are too long", { 64: 10, 128: 19, 256: 37, 512: 51 }, 256, [64, 128, 256, 512]],
  ["no larger one is measured after one that is too long", { 64: 30, 128: 55 }, 64, [64, 128]],
  ["larger ones are slower per token", { 64: 5, 128: 11, 256: 22, 512: 44 }, 64, [64, 128, 256, 512]],
  ["one between is slower per token", { 64: 5, 128: 11, 256: 18, 512: 44 }, 256, [64, 128, 256, 512]],
  ["the smallest one is too long already", { 64: 60 }, 64, [64]],
])("%s", async (_, ms, chunk, measured) => {
  const runner = new SteppedFake(times(ms));
  expect(await chooseChunk(runner, options())).toBe(chunk);
  expect(runner).toMatchObject({ chunk, room: chunk, measured });
});

test("a device without memory for a chunk gets a smaller one", async () => {
  const runner = new SteppedFake(times({ 64: 10, 128: 15 }), LIMITS, 128);
  expect(await chooseChunk(runner, options())).toBe(128);
  expect(runner).toMatchObject({ room: 128, measured: [64, 128] });
});

test("no step exceeds the limits, the context, or the chunk that the runner begins with", async () => {
  const fast = (tokens: number): number => Math.sqrt(tokens);
  expect(await chooseChunk(new SteppedFake(fast, { ...LIMITS, tokens: 256 }), options())).toBe(256);
  expect(await chooseChunk(new SteppedFake(fast, { ...LIMITS, context: 200 }), options())).toBe(128);
  const large = new SteppedFake(fast, { ...LIMITS, chunk: 280 });
  expect(await chooseChunk(large, options())).toBe(512);
  expect(large.measured).toEqual([280, 512]);
});

test("steps are those of a prompt at the end of the context, and write only to borrowed pages", async () => {
  const runner = new SteppedFake(times({ 64: 10, 128: 15, 256: 25, 512: 45 }));
  await chooseChunk(runner, options());
  for (const batch of runner.batches) {
    expect(batch.positions.at(-1)).toBe(4095);
    expect(batch.sample_rows).toEqual([]);
    expect(new Set(batch.slots.map((slot) => slot >> 4))).toEqual(new Set([299]));
    expect(new Set(batch.window_slots?.map((slot) => slot >> 4))).toEqual(new Set([39]));
    expect(batch.state_slots).toEqual([2, 2]);
  }
});

test("the first run of a size warms up, and a step that is much too long runs only once", async () => {
  const warmed = new SteppedFake((tokens, run) => (run === 1 ? 70 : tokens / 20));
  expect(await chooseChunk(warmed, options())).toBe(512);
  const slow = new SteppedFake(() => 4000);
  await chooseChunk(slow, options());
  expect(slow.batches).toHaveLength(1);
});

test("fast steps are measured together, as they run", async () => {
  // The first step of a group costs a round trip to the host.
  let last = -Infinity;
  const runner = new SteppedFake((tokens) => {
    const ms = tokens / 50 + (performance.now() === last ? 0 : 4);
    last = performance.now() + ms;
    return ms;
  });
  const idle = (): Promise<void> => {
    last = -Infinity;
    return Promise.resolve();
  };
  expect(await chooseChunk(runner, options({ idle }))).toBe(512);
  // 1, then as many as fit into 50 ms, at most those that may be in flight.
  expect(runner.batches.filter(({ token_ids }) => token_ids.length === 64)).toHaveLength(1 + 8 + 8);
});

test("measuring waits for the device to be idle, and ends when it is aborted", async () => {
  const controller = new AbortController();
  let waits = 0;
  const idle = (): Promise<void> => {
    if (++waits === 3) controller.abort(new Error("closed"));
    return Promise.resolve();
  };
  const runner = new SteppedFake(() => 40);
  await expect(chooseChunk(runner, options({ idle, signal: controller.signal }))).rejects.toThrow("closed");
  expect(runner).toMatchObject({ chunk: 64 });
  expect(runner.batches).toHaveLength(2);
});

class MeasuredFake extends SteppedFake {
  readonly manifest = lettersBundle().manifest;
  readonly rows = new Map();
  readonly chosen: Choices[] = [];
  mayDraft = false;
  choose(choices: Choices): void {
    this.chosen.push(choices);
  }
  time(): Promise<number> {
    return Promise.resolve(1);
  }
}

const ADAPTER: AdapterEntry = { vendor: "v", architecture: "", device: "", description: "" };
const record = (changes: Partial<TuningEntry>): TuningEntry => ({
  adapter: ADAPTER,
  activation: "float32",
  variants: { head: [{ when: null, variant: "plain" }] },
  steps: null,
  ...changes,
});

test("only what a record does not contain is measured", async () => {
  const fast = times({ 64: 10, 128: 15, 256: 25, 512: 60 });
  const { variants } = record({});
  const old = new MeasuredFake(fast);
  expect(await tuning.measure(old, record({}), options())).toEqual({
    variants,
    steps: { chunk: 256, decode: null },
  });
  const known = new MeasuredFake(fast);
  const steps = { chunk: 128, decode: null };
  expect(await tuning.measure(known, record({ steps }), options())).toEqual({ variants, steps });
  expect(known.batches).toEqual([]);
  expect(await tuning.measure(new MeasuredFake(fast), null, options())).toEqual({
    variants: {},
    steps: { chunk: 256, decode: null },
  });
  // What steps cost that check drafts is measured with the variants.
  const drafting = Object.assign(new MeasuredFake(fast, { ...LIMITS, rows: 11 }), { mayDraft: true });
  const found = await tuning.measure(drafting, record({ steps }), options());
  expect(found.steps?.chunk).toBe(128);
  expect(found.steps?.decode?.steps.map(({ rows }) => rows)).toEqual([1, 3, 5, 8]);
  expect(drafting.chosen).toEqual([{ off: new Set(), front: variants }]);
  const decode = { ahead_ms: 1, steps: [] };
  const drafted = Object.assign(new MeasuredFake(fast), { mayDraft: true });
  expect((await tuning.measure(drafted, record({ steps: { chunk: 64, decode } }), options())).steps).toEqual({
    chunk: 64,
    decode,
  });
  expect(drafted.batches).toEqual([]);
  // An application or the model has set the chunk.
  const fixed = new MeasuredFake(fast, { ...LIMITS, tokens: 64 });
  expect(await tuning.measure(fixed, null, options())).toEqual({ variants: {}, steps: null });
});
