// The prediction for a model of many layers, from a runner whose steps take the time that the test sets.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { MeasuredRunner } from "../../src/probe/measure.js";
import { measureSteps, measureTexts } from "../../src/probe/measure.js";
import { firstTokenMs, tokenMs } from "../../src/probe/predict.js";
import type { Batch } from "../../src/runtime/batch.js";

const [EMPTY_MS, EMBED_MS, HEAD_MS] = [1.5, 1, 10];
const LAYERS = 28;

/** Of a layer, on the device. */
const layerMs = (tokens: number, context: number): number => 6 + tokens + tokens * context * 0.001;
/** Each layer has two steps, which come after the embedding. */
const ENDS = Array.from({ length: LAYERS }, (_, layer) => 1 + 2 * (layer + 1));

class FakeRunner implements MeasuredRunner {
  layers: number[] = [];
  readonly limits;

  constructor(
    splitsTexts = true,
    private readonly slower = 1,
  ) {
    this.limits = {
      tokens: 512,
      splitsTexts,
      sequences: 4,
      groups: [{ pages: 65, window: Infinity }],
      pageSize: 16,
      context: 1024,
      vocabSize: 8,
    };
  }

  async listen(batch: Batch, end?: number): Promise<void> {
    const layers = end === undefined ? LAYERS : (end - 1) / 2;
    this.layers.push(layers);
    await this.#run(batch, end === 0 ? null : layers, end === undefined);
  }

  async submit(batch: Batch): Promise<never> {
    await this.#run(batch, 2, true);
    return { tokenIds: new Int32Array(), logprobs: null, alternatives: null } as never;
  }

  async #run(batch: Batch, layers: number | null, head: boolean): Promise<void> {
    await Promise.resolve();
    const context = (batch.positions.at(-1) ?? 0) + 1;
    const sampled = head && batch.sample_rows.length > 0;
    const ms = layers === null ? 0 : EMBED_MS + layers * this.slower * layerMs(batch.token_ids.length, context);
    vi.advanceTimersByTime(EMPTY_MS + ms + (sampled ? HEAD_MS : 0));
  }
}

const options = (until: number) => ({
  signal: new AbortController().signal,
  until,
  ends: ENDS,
  floorMs: 0,
  onCpu: false,
});

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

/** Its driver compiles the kernels of a number of tokens, and those of the head, in their first run. */
class CompilingRunner extends FakeRunner {
  readonly #compiled = new Set<number | string>();

  override async listen(batch: Batch, end?: number): Promise<void> {
    this.#compile(batch.token_ids.length);
    await super.listen(batch, end);
  }

  override async submit(batch: Batch): Promise<never> {
    this.#compile("head");
    return super.submit(batch);
  }

  #compile(kernels: number | string): void {
    if (!this.#compiled.has(kernels)) vi.advanceTimersByTime(9000);
    this.#compiled.add(kernels);
  }
}

test("what a driver compiles in the first runs is no part of a step, though the time is spent", async () => {
  const { times } = await measureSteps(new CompilingRunner(), options(performance.now() + 2000));
  const token = EMBED_MS + LAYERS * layerMs(1, 256) + HEAD_MS;
  expect(Math.abs(tokenMs(times, 256).ms / token - 1)).toBeLessThan(0.25);
  const first = EMBED_MS + LAYERS * layerMs(64, 64) + HEAD_MS + EMPTY_MS;
  expect(Math.abs(firstTokenMs(times, 64).ms / first - 1)).toBeLessThan(0.25);
});

test("with enough time, all layers run, and the prediction is exact", async () => {
  const { times, roundTripMs, spent } = await measureSteps(new FakeRunner(), options(1e9));
  expect(roundTripMs).toBeCloseTo(EMPTY_MS);
  for (const context of [256, 640, 1024])
    expect(tokenMs(times, context).ms).toBeCloseTo(EMBED_MS + LAYERS * layerMs(1, context) + HEAD_MS);
  const chunk = EMBED_MS + LAYERS * layerMs(64, 64);
  expect(firstTokenMs(times, 64).ms).toBeCloseTo(chunk + HEAD_MS + EMPTY_MS);
  const second = EMBED_MS + LAYERS * layerMs(64, 128);
  expect(firstTokenMs(times, 128).ms).toBeCloseTo(chunk + second + HEAD_MS + EMPTY_MS);
  expect(times.exact).toBe(true);
  // Each measurement is listed with its time.
  expect(spent.map(({ step, runs }) => [step, runs > 0])).toContainEqual(["prompt", true]);
  const all = spent.reduce((sum, { ms }) => sum + ms, 0);
  expect(all).toBeCloseTo(performance.now(), 0);
});

test("on a driver for CPUs, a token takes its way to the host too, and long contexts are not measured", async () => {
  const runner = new FakeRunner();
  const { times } = await measureSteps(runner, { ...options(1e9), onCpu: true });
  for (const context of [16, 256])
    expect(tokenMs(times, context).ms).toBeCloseTo(EMBED_MS + LAYERS * layerMs(1, context) + HEAD_MS + EMPTY_MS);
  expect(times.token.map(({ at }) => at)).toEqual([16, 256]);
});

test("with less time, fewer layers run, and the prediction is that of all", async () => {
  const runner = new FakeRunner();
  const start = performance.now();
  const { times } = await measureSteps(runner, options(start + 600));
  expect(Math.max(...runner.layers)).toBeLessThan(LAYERS);
  const expected = EMBED_MS + LAYERS * layerMs(1, 256) + HEAD_MS;
  expect(tokenMs(times, 256).ms / expected).toBeGreaterThan(0.9);
  expect(tokenMs(times, 256).ms / expected).toBeLessThan(1.2);
});

test("a device that is too slow for its time measures a few layers, and says what it left out", async () => {
  const leftOut = async (slower: number) => {
    const runner = new FakeRunner(true, slower);
    const start = performance.now();
    const { times, spent } = await measureSteps(runner, options(start + 1));
    expect(new Set(runner.layers)).toEqual(new Set([2, -0.5]));
    expect(times.exact).toBe(false);
    // Not longer than the runs that it cannot do without, and those that are cheap.
    expect(performance.now() - start).toBeLessThan(slower * 600);
    const { low, high } = tokenMs(times, 256);
    const expected = EMBED_MS + LAYERS * slower * layerMs(1, 256) + HEAD_MS;
    expect(low).toBeLessThan(expected);
    expect(high).toBeGreaterThan(expected);
    return [times, spent.filter(({ runs }) => runs === 0).map(({ step }) => step)] as const;
  };
  // Of a chunk behind a context.
  const [slow, steps] = await leftOut(2);
  expect(steps).toEqual(["context"]);
  // A short prompt is not on the line between a token and a chunk.
  expect(slow.prompt.map(({ at }) => at)).toEqual([1, 16, 64]);
  expect(slow.token.map(({ at }) => at)).toEqual([256, 1024]);
  // A chunk is not on the line through shorter prompts.
  const [chunked] = await leftOut(6);
  expect(chunked.prompt.map(({ at }) => at)).toContain(64);
  // Of a token behind a long one.
  const [slower, few] = await leftOut(16);
  expect(few).toEqual(["context"]);
  expect(slower.prompt.map(({ at }) => at)).toEqual([1, 16]);
  expect(slower.token.map(({ at }) => at)).toEqual([256]);
});

test("weights that a cache holds are not faster than the memory for all of them", async () => {
  const { times } = await measureSteps(new FakeRunner(), { ...options(1e9), floorMs: 5000 });
  expect(tokenMs(times, 256).ms).toBe(5000);
  const fast = await measureSteps(new FakeRunner(), { ...options(1e9), floorMs: 5 });
  expect(tokenMs(fast.times, 256).ms).toBeLessThan(300);
});

test("an encoder's batches are measured whole, as far as there is time", async () => {
  const { texts, exact } = await measureTexts(new FakeRunner(false), options(1e9));
  expect(texts.map(({ at }) => at)).toEqual([16, 128, 512]);
  expect(texts[1]?.span.ms).toBeCloseTo(EMBED_MS + LAYERS * layerMs(128, 128) + HEAD_MS);
  expect(exact).toBe(true);
  const start = performance.now();
  const brief = await measureTexts(new FakeRunner(false), options(start + 1));
  // A batch of a few layers that takes long is left out.
  expect(brief.texts.map(({ at }) => at)).toEqual([16, 128]);
  expect(brief.exact).toBe(false);
});
