// The runner on a device: Dawn in Node, on any adapter that Vulkan finds.

import { beforeAll, expect, test } from "vitest";

import { DeviceError } from "../../src/errors.js";
import type { Batch, StepResult } from "../../src/runtime/index.js";
import { Runner, SAMPLE_FLAGS, largestBuffer, openBundle, openDevice, settingsRow } from "../../src/runtime/index.js";
import { planMemory } from "../../src/runtime/memory_plan.js";
import { planOf } from "../../src/runtime/plan.js";
import { dawn } from "../../tools/dawn.js";
import { lettersBundle, memorySource, tabledBundle, windowedBundle } from "../letters_bundle.js";
import { PLACEHOLDER, seeingBundle } from "../seeing_letters.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
if (!hasAdapter && process.env.CI !== undefined)
  throw new Error("Dawn finds no adapter (CI is set, so this is not skipped)");
const withRunner = test.runIf(hasAdapter);
const { files } = lettersBundle();
let runner: Runner;

beforeAll(async () => {
  if (!hasAdapter) return;
  runner = await newRunner();
  return () => {
    runner.destroy();
  };
});

async function newRunner(bundleFiles = files, pages = 20): Promise<Runner> {
  const bundle = await openBundle(memorySource(bundleFiles), new AbortController().signal);
  const pool = { maxSequences: 3, pages };
  const device = await openDevice(bundle.manifest, { gpu }, (activation) =>
    largestBuffer(bundle.manifest, activation, pool),
  );
  return Runner.create(bundle, device, pool);
}

/** A prompt of ``length`` tokens, of which the last one is sampled. */
function prompt(length: number): Batch {
  const rows = Array.from({ length }, (_, row) => row);
  return {
    token_ids: rows.map((row) => row % 8),
    positions: rows,
    slots: rows,
    seq_starts: [0, length],
    page_indptr: [0, Math.ceil(length / 16)],
    page_ids: rows.slice(0, Math.ceil(length / 16)),
    sample_rows: [length - 1],
    sample_slots: [0, 0],
    sample_settings: settingsRow({}),
  };
}

/** One new token for each sequence, sampled into the slot with the sequence's index; the flags apply to all. */
function step(tokenIds: readonly number[], flags = 0): Batch {
  const rows = tokenIds.map((_, row) => row);
  return {
    token_ids: tokenIds,
    positions: rows.map(() => 0),
    slots: rows.map((row) => row * 16),
    seq_starts: [...rows, rows.length],
    page_indptr: [...rows, rows.length],
    page_ids: rows,
    sample_rows: rows,
    sample_slots: rows.flatMap((row) => [row, flags]),
    sample_settings: rows.flatMap(() => settingsRow({})),
  };
}

const idsOf = (results: readonly StepResult[]): readonly (readonly number[])[] =>
  results.map(({ tokenIds }) => [...tokenIds]);

withRunner("limits equal the requested ones", () => {
  expect(runner.limits).toEqual({
    tokens: 64,
    chunk: 64,
    // Seven for drafts of all sequences together.
    rows: 10,
    splitsTexts: true,
    sequences: 3,
    states: 0,
    draftPages: 0,
    patches: 0,
    groups: [{ pages: 20, window: Infinity }],
    pageSize: 16,
    context: 256,
    adapters: 0,
    vocabSize: 8,
  });
});

withRunner("buffers are those of the chunk, and steps are right while it changes", async () => {
  // Many pages, beside which a large chunk takes little.
  const changing = await newRunner(files, 4000);
  expect(changing.limits).toMatchObject({ tokens: 256, chunk: 64 });
  expect(changing.chunk).toBe(64);
  const { totalBytes } = changing.info;
  const results = [changing.submit(prompt(64))];
  for (const tokens of [256, 128, 200]) {
    expect(await changing.resize(tokens)).toBe(true);
    // A row of x has 32 bytes.
    expect(changing.info.totalBytes - totalBytes).toBe((tokens - 64) * 32);
    results.push(changing.submit(prompt(tokens - 3)), changing.submit(step([2])));
  }
  const tokens = idsOf(await Promise.all(results)).flat();
  // Token (3 t + 1) mod 8 follows token t.
  expect(tokens).toEqual([6, ...[252, 124, 196].flatMap((last) => [(3 * (last % 8) + 1) % 8, 7])]);
  // A larger batch than the chunk gets room too.
  expect(idsOf([await changing.submit(prompt(240))])).toEqual([[6]]);
  await expect(changing.submit(prompt(257))).rejects.toThrow("S is 257, this runner accepts at most 256");
  changing.destroy();
});

withRunner("without memory for a chunk a runner keeps its buffers, and computes on", async () => {
  const bundle = await openBundle(memorySource(files), new AbortController().signal);
  const open = await openDevice(bundle.manifest, { gpu }, () => 0);
  const short = await Runner.create(bundle, open, { pages: 4000 });
  const before = short.info.totalBytes;
  const pop = open.device.popErrorScope.bind(open.device);
  open.device.popErrorScope = async () => {
    await pop();
    return { message: "out of memory" };
  };
  expect(await short.resize(256)).toBe(false);
  open.device.popErrorScope = pop;
  expect(short.info.totalBytes).toBe(before);
  expect(idsOf([await short.submit(prompt(64))])).toEqual([[6]]);
  short.destroy();
});

withRunner("a recorded chunk is used if the device still has the memory for it, and within the limits", async () => {
  const bundle = await openBundle(memorySource(files), new AbortController().signal);
  for (const [recorded, lacks, chunk] of [
    [200, false, 200],
    [1e9, false, 256],
    [1, false, 64],
    [200, true, 64],
  ] as const) {
    const open = await openDevice(bundle.manifest, { gpu }, () => 0);
    const { device } = open;
    const [push, pop] = [device.pushErrorScope.bind(device), device.popErrorScope.bind(device)];
    let allocations = 0;
    device.pushErrorScope = (filter) => {
      if (filter === "out-of-memory") allocations++;
      push(filter);
    };
    // The first allocation is that of all memory, the second that of the chunk.
    device.popErrorScope = async () =>
      (await pop(), lacks && allocations === 2) ? { message: "out of memory" } : null;
    const opened = await Runner.create(bundle, open, { pages: 4000, chunk: recorded });
    expect(opened.chunk).toBe(chunk);
    expect(idsOf([await opened.submit(prompt(chunk))])).toEqual([[6]]);
    opened.destroy();
  }
});

withRunner("a device that was lost cannot change the chunk", async () => {
  const lost = await newRunner(files, 4000);
  lost.destroy();
  await lost.lost;
  await expect(lost.resize(128)).rejects.toBeInstanceOf(DeviceError);
});

withRunner("steps in flight pass tokens on the device, and their results arrive in order", async () => {
  const order: number[] = [];
  const batches = [step([0, 1, 2]), step([-1, -2, -3]), step([-3, -2]), step([-2]), step([7])];
  const results = await Promise.all(
    batches.map((batch, index) => runner.submit(batch).finally(() => order.push(index))),
  );
  // Token (3 t + 1) mod 8 follows token t: 0 1 4 5, 1 4 5, 2 7 6.
  expect(idsOf(results)).toEqual([[1, 4, 7], [4, 5, 6], [3, 0], [1], [6]]);
  expect(order).toEqual([0, 1, 2, 3, 4]);
});

withRunner("log-probabilities and the most likely tokens are returned if they are requested", async () => {
  const [none, logprobs, all] = await Promise.all([
    runner.submit(step([0, 1])),
    runner.submit(step([0, 1]), { logprobs: true }),
    runner.submit(step([0, 1]), { logprobs: true, alternatives: true }),
  ]);
  expect(none).toMatchObject({ logprobs: null, alternatives: null });
  const expected = 10 - Math.log(Math.exp(10) + 7);
  for (const actual of [...(logprobs.logprobs ?? []), ...(all.logprobs ?? [])]) expect(actual).toBeCloseTo(expected, 5);
  expect([...(all.alternatives?.ids ?? [])]).toEqual([1, 0, 2, 3, 4, 5, 6, 7, 4, 0, 1, 2, 3, 5, 6, 7]);
  expect([...(all.alternatives?.logprobs ?? [])].filter((logit) => logit !== 0)).toEqual([10, 10]);
});

withRunner("a batch without sampled rows resolves without a read, and later batches see its effects", async () => {
  const silent: Batch = { ...step([3]), sample_rows: [], sample_slots: [], sample_settings: [] };
  expect(await runner.submit(silent, { logprobs: true })).toEqual({
    tokenIds: new Int32Array(),
    logprobs: new Float32Array(),
    alternatives: null,
  });
});

withRunner("logits are those of the rows", async () => {
  expect([...(await runner.forwardLogits(step([0, 2])))]).toEqual([0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10]);
});

withRunner("a slot's bias affects only the batches after it", async () => {
  const bias = (id: number): Float32Array<ArrayBuffer> =>
    Float32Array.from({ length: 8 }, (_, each) => (each === id ? 20 : 0));
  const before = runner.submit(step([0, 0], SAMPLE_FLAGS.bias));
  runner.setLogitBias(1, bias(6));
  const between = runner.submit(step([0, 0], SAMPLE_FLAGS.bias));
  runner.setLogitBias(1, bias(3));
  const after = runner.submit(step([0, 0], SAMPLE_FLAGS.bias));
  const without = runner.submit(step([0, 0]));
  expect(idsOf(await Promise.all([before, between, after, without]))).toEqual([
    [1, 1],
    [1, 6],
    [1, 3],
    [1, 1],
  ]);
});

withRunner("complete pages are copied, read and written", async () => {
  const pageBytes = 2 * 16 * 2 * 4;
  const random = Uint8Array.from({ length: 3 * pageBytes }, (_, index) => (index * 37) % 251);
  runner.writePages([[4, 19, 7]], random);
  runner.copyPages([
    [
      [4, 0],
      [7, 4],
      [4, 1],
    ],
  ]);
  const read = await runner.readPages([[0, 19, 1]]);
  const [a, b, c] = [0, 1, 2].map((page) => random.slice(page * pageBytes, (page + 1) * pageBytes));
  expect(read).toEqual(Uint8Array.from([...(a ?? []), ...(b ?? []), ...(c ?? [])]));
  expect(await runner.readPages([])).toEqual(new Uint8Array());
});

withRunner("rows of a table on the host come with each batch, whose tokens must be known", async () => {
  const { manifest, files } = tabledBundle();
  const tabled = await newRunner(files);
  expect(runner.stepsInFlight).toBeGreaterThan(1);
  expect(tabled.stepsInFlight).toBe(1);
  expect(tabled.info.weightBytes).toBe(runner.info.weightBytes);
  expect(planMemory(manifest, "float32").weightBytes).toBe(runner.info.weightBytes);
  for (const [tokens, next] of [
    [
      [0, 1, 2],
      [1, 4, 7],
    ],
    [
      [7, 5],
      [6, 0],
    ],
    [[4], [5]],
  ] as const)
    expect([...(await tabled.submit(step(tokens))).tokenIds]).toEqual(next);
  await expect(tabled.submit(step([3, -1]))).rejects.toThrow("needs the ids of all tokens");
  tabled.destroy();
});

withRunner("pages of two groups are copied, read and written on their own", async () => {
  const windowed = await newRunner(windowedBundle(40).files);
  expect(windowed.limits.groups).toEqual([
    { pages: 20, window: Infinity },
    { pages: 20, window: 40 },
  ]);
  // A page of 2 x 16 x 2 values, and one of 2 x 16 x 4.
  const random = Uint8Array.from({ length: 256 + 2 * 512 }, (_, index) => (index * 37) % 251);
  windowed.writePages([[3], [19, 0]], random);
  windowed.copyPages([[], [[19, 3]]]);
  expect(await windowed.readPages([[3], [3, 0]])).toEqual(random);
  expect(await windowed.readPages([[], [0]])).toEqual(random.slice(256 + 512));
  expect(() => {
    windowed.writePages([[3], [19]], random);
  }).toThrow("2 pages of this model are 768 bytes, not 1280");
  await expect(windowed.readPages([[19], [20]])).rejects.toThrow("Page 20 is not in the pool");
  await expect(windowed.submit(step([0]))).rejects.toThrow("window_slots has 0 elements, the plan needs 1");
  const batch = { window_slots: [5], window_page_indptr: [0, 1], window_page_ids: [0] };
  expect(idsOf([await windowed.submit({ ...step([0]), ...batch })])).toEqual([[1]]);
  windowed.destroy();
});

withRunner("values out of range are a RequestError", async () => {
  const request = { code: "request_error" };
  await expect(runner.submit(step([0, 0, 0, 0]))).rejects.toMatchObject({
    ...request,
    message: "batch: B is 4, this runner accepts at most 3; split the batch",
  });
  await expect(runner.submit({ ...step([0]), sample_slots: [3, 0] })).rejects.toMatchObject({
    ...request,
    details: { slot: 3, slots: 3 },
  });
  await expect(runner.submit({ ...step([0]), sample_slots: [-1, SAMPLE_FLAGS.mask] })).rejects.toMatchObject(request);
  expect(idsOf([await runner.submit({ ...step([0]), sample_slots: [-1, 0] })])).toEqual([[1]]);
  await expect(runner.readPages([[20]])).rejects.toMatchObject(request);
  expect(() => {
    runner.copyPages([[[0, -1]]]);
  }).toThrow("Page -1 is not in the pool");
  expect(() => {
    runner.writePages([[0]], new Uint8Array(3));
  }).toThrow("1 pages of this model are 256 bytes, not 3");
  expect(() => {
    runner.setTokenCounts(3, null);
  }).toThrow("slot 3 is not one of 0 to 2");
  expect(() => {
    runner.setTokenMask(0, new Int32Array(2));
  }).toThrow("2 values do not fit a slot of 1");
});

withRunner("an input with a size that differs from the plan is a RequestError that names it", async () => {
  const short = { ...step([1, 2]), positions: [0] };
  await expect(runner.submit(short)).rejects.toThrow("batch: positions has 1 elements, the plan needs 2");
  const settings = { ...step([1]), sample_settings: [0, 0, 1] };
  await expect(runner.submit(settings)).rejects.toMatchObject({
    code: "request_error",
    details: { input: "sample_settings", found: 3, expected: 8 },
  });
});

withRunner("an unknown input of a plan, and a missing plan, are BundleErrors before the download", async () => {
  const { manifest } = lettersBundle();
  const plan = planOf(manifest);
  const inputs = { ...plan.inputs, pixels: { shape: ["S", 3], dtype: "float32" as const } };
  await expect(newRunner(lettersBundle({ plans: { generate: { ...plan, inputs } } }).files)).rejects.toThrow(
    "manifest.json: input pixels is not known here; known: token_ids",
  );
  await expect(newRunner(lettersBundle({ plans: { encode: plan } }).files)).rejects.toThrow(
    "manifest.json: has no plan 'generate', only encode; use a newer @nearfar/web",
  );
});

withRunner("a lost device resolves `lost`, and rejects batches in flight and later ones", async () => {
  const other = await newRunner();
  const inFlight = other.submit(step([0]));
  other.destroy();
  await expect(inFlight).rejects.toHaveProperty("code", "device_error");
  expect(await other.lost).toMatchObject({ code: "device_error", details: { reason: "destroyed" } });
  await expect(other.submit(step([0]))).rejects.toThrow("The WebGPU device was lost (destroyed");
});

withRunner("features of a picture's patches replace the embeddings of the rows that a batch names", async () => {
  const seeing = await newRunner(seeingBundle().files);
  expect(seeing.limits.patches).toBe(16);
  // Rows of features, as many as a batch may place.
  const [own, blind] = [seeing, runner].map(({ manifest }) => planMemory(manifest, "float32").workingBytes);
  expect((own ?? 0) - (blind ?? 0)).toBe(64 * 8 * 4);
  // Two blocks of four patches: the bytes of the first sum up to 8 + 3, those of the second to 16 + 6.
  const bytes = [1, 2, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 7, 7, 0, 0, 1, 0, 0, 0, 7, 0, 0];
  const tile = {
    patches: Float32Array.from(bytes, (byte) => byte / 255),
    patch_rows: new Int32Array(8),
    patch_weights: new Float32Array(8),
    patch_starts: [0, 8],
  };
  const row = (letter: number): number[] => Array.from({ length: 8 }, (_, index) => (index === letter ? 10 : 0));
  const features = await seeing.features(tile);
  expect([...features]).toEqual([...row(3), ...row(6)]);
  const text = step([0, 1, 2]);
  const seen = { ...step([0, PLACEHOLDER, PLACEHOLDER]), features, feature_rows: [2, 1] };
  const found = [seeing.submit(text), seeing.submit(seen), seeing.submit(text), seeing.features(tile)] as const;
  expect(idsOf(await Promise.all(found.slice(0, 3) as Promise<StepResult>[]))).toEqual([
    [1, 4, 7],
    [1, 6, 3],
    [1, 4, 7],
  ]);
  expect(await found[3]).toEqual(features);
  await expect(seeing.features({ ...tile, patch_starts: [0, 20] })).rejects.toThrow("V is 20, this runner accepts at");
  await expect(seeing.features({ ...tile, patch_starts: [0, 12] })).rejects.toThrow("patches has 24 elements");
  await expect(runner.features(tile)).rejects.toThrow("letters sees no pictures");
  seeing.destroy();
});
