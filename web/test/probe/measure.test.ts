// The prediction for a model of many layers, from a runner of two whose steps take the time that the test sets.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { MeasuredRunner } from "../../src/probe/measure.js";
import { measureSteps } from "../../src/probe/measure.js";
import { firstTokenMs, tokenMs } from "../../src/probe/predict.js";
import type { Batch } from "../../src/runtime/batch.js";
import { NO_CHOICES } from "../../src/runtime/choices.js";
import type { Manifest, StepEntry } from "../../src/runtime/manifest.js";

const STEP_MS = 1.5;

/** The ms of each list's step, on the device. */
const MS: Readonly<Record<string, (tokens: number, context: number) => number>> = {
  embed: () => 1,
  project: (tokens) => 4 + tokens,
  attend: (tokens, context) => 2 + tokens * context * 0.001,
  head: () => 10,
};

function step(variants: string, inputs: Readonly<Record<string, string>>): StepEntry {
  return { op: variants, variants, inputs, outputs: {}, attrs: {} };
}

function manifestOf(layers: number): Manifest {
  const steps = [
    step("embed", { token_ids: "token_ids" }),
    ...Array.from({ length: layers }, (_, layer) => [
      step("project", { x: "x", weight: `layers.${layer}.weight` }),
      step("attend", { page_ids: "page_ids" }),
    ]).flat(),
    step("head", { rows: "sample_rows" }),
  ];
  const plane = { name: "w", dtype: "float32", shape: [1000], shard: 0, offset: 0, size: 4000 };
  const weights = Object.fromEntries(
    Array.from({ length: layers }, (_, layer) => [`layers.${layer}.weight`, { planes: [plane] }]),
  );
  return { plans: { generate: { steps } }, weights, embedding: null, classifier: null } as unknown as Manifest;
}

class FakeRunner implements MeasuredRunner {
  readonly manifest = manifestOf(2);
  readonly stepsInFlight = 8;
  readonly rows = new Map(
    Object.keys(MS).map((list) => [list, [{ kernels: [list], activation: null, needs: [], when: null }]]),
  );
  readonly info = { kernels: 4, dispatchesPerToken: 6, weightBytes: 0, stateBytes: 0, totalBytes: 0 };
  readonly limits = {
    tokens: 64,
    sequences: 1,
    groups: [{ pages: 65, window: Infinity }],
    pageSize: 16,
    context: 1024,
    vocabSize: 8,
  };

  /** ``busy``: how much longer a list alone takes than in a step, because other programs run. */
  constructor(private readonly busy = 1) {}

  time(batch: Batch, list: string, _variant: string, count: number): Promise<number> {
    const ms = count * this.busy * msOf(list, batch);
    vi.advanceTimersByTime(ms);
    return Promise.resolve(ms);
  }

  async submit(batch: Batch): Promise<never> {
    await Promise.resolve();
    const sampled = batch.sample_rows.length > 0;
    const { steps } = this.manifest.plans.generate ?? { steps: [] };
    const kernels = steps.filter(({ variants }) => sampled || variants !== "head");
    vi.advanceTimersByTime(STEP_MS + kernels.reduce((all, { variants }) => all + msOf(variants, batch), 0));
    return { tokenIds: new Int32Array(), logprobs: null, alternatives: null } as never;
  }
}

function msOf(list: string, batch: Batch): number {
  return MS[list]?.(batch.token_ids.length, (batch.positions.at(-1) ?? 0) + 1) ?? 0;
}

const OPTIONS = { choices: NO_CHOICES, signal: new AbortController().signal, copyBytesPerSecond: null };

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

test.each([2, 28])("two layers show the times of %i", async (layers) => {
  const { times } = await measureSteps(new FakeRunner(), manifestOf(layers), { ...OPTIONS, budgetMs: Infinity });
  const layer = (tokens: number, context: number): number =>
    (MS.project?.(tokens, context) ?? 0) + (MS.attend?.(tokens, context) ?? 0);
  for (const context of [256, 640, 1024])
    expect(tokenMs(times, context).ms).toBeCloseTo(1 + layers * layer(1, context) + 10 + STEP_MS);
  expect(firstTokenMs(times, 64).ms).toBeCloseTo(1 + layers * layer(64, 64) + 10 + STEP_MS);
  const second = 1 + layers * layer(64, 128) + STEP_MS;
  expect(firstTokenMs(times, 128).ms).toBeCloseTo(firstTokenMs(times, 64).ms + second);
  expect(firstTokenMs(times, 16).ms).toBeCloseTo(1 + layers * layer(16, 16) + 10 + STEP_MS);
});

test("if lists alone take longer than in a step, the step counts", async () => {
  const options = { ...OPTIONS, budgetMs: Infinity };
  const busy = tokenMs((await measureSteps(new FakeRunner(3), manifestOf(28), options)).times, 256).ms;
  const calm = 1 + 28 * (5 + 2.256) + 10;
  expect(busy / calm).toBeGreaterThan(1);
  // The time besides the kernels is a part of the probe's step, and counts as often as its layers.
  expect(busy / calm).toBeLessThan(1.06);
});

test("weights that a cache holds are not faster than the memory for all of them", async () => {
  const options = { ...OPTIONS, budgetMs: Infinity, copyBytesPerSecond: 100_000 };
  const { times } = await measureSteps(new FakeRunner(), manifestOf(28), options);
  // 4,000 bytes take 40 ms, and not 5.
  expect(tokenMs(times, 256).ms).toBeCloseTo(1 + 28 * (40 + 2.256) + 10 + STEP_MS);
  const fast = await measureSteps(new FakeRunner(), manifestOf(28), { ...options, copyBytesPerSecond: 1e12 });
  expect(tokenMs(fast.times, 256).ms).toBeCloseTo(1 + 28 * (5 + 2.256) + 10 + STEP_MS);
});
