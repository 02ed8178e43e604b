// The chunk for which a plan has memory.

import { expect, test } from "vitest";

import type { BufferEntry, Manifest } from "../../src/runtime/manifest.js";
import { capacityOf, largestBuffer, limitsOf } from "../../src/runtime/memory.js";
import type { MemoryOptions } from "../../src/runtime/memory_plan.js";
import { planMemory, poolWithin } from "../../src/runtime/memory_plan.js";
import { lettersBundle } from "../letters_bundle.js";

/** A model with a buffer of ``rowBytes`` for each new token, and ``weightBytes``. */
function modelOf(rowBytes: number, weightBytes: number, changes: Partial<Manifest> = {}): Manifest {
  const { manifest } = lettersBundle({ context: 1024 });
  const { generate } = manifest.plans;
  const { table } = manifest.weights;
  if (generate === undefined || table === undefined) throw new Error("no plan");
  const x: BufferEntry = { shape: ["S", rowBytes / 4], dtype: "float32" };
  // In several planes, so that none is the largest buffer.
  const planes = Array.from({ length: 64 }, (_, plane) => ({
    ...({ name: `w${plane}`, dtype: "float32", shape: [8, 8], shard: 0, offset: 0 } as const),
    size: weightBytes / 64,
  }));
  return {
    ...manifest,
    plans: { generate: { ...generate, buffers: { ...generate.buffers, x } } },
    weights: { table: { ...table, planes } },
    ...changes,
  };
}

const chunkOf = (manifest: Manifest, options: MemoryOptions = {}): number | undefined =>
  planMemory(manifest, "float32", options).largestChunk;

test("a chunk takes at most an eighth of what the model needs anyway", () => {
  for (const rowBytes of [4000, 20_000, 40_000, 100_000, 400_000]) {
    const manifest = modelOf(rowBytes, 2 ** 25);
    const { totalBytes: least } = planMemory(manifest, "float32", { prefillChunk: 64 });
    const chunk = chunkOf(manifest);
    const bytesWith = (prefillChunk: number): number => planMemory(manifest, "float32", { prefillChunk }).totalBytes;
    for (const larger of [128, 256, 512]) expect(larger <= Number(chunk)).toBe(bytesWith(larger) <= 1.125 * least);
    expect(planMemory(manifest, "float32").totalBytes).toBe(bytesWith(Number(chunk)));
  }
  expect([4000, 20_000, 40_000, 400_000].map((bytes) => chunkOf(modelOf(bytes, 2 ** 25)))).toEqual([512, 256, 128, 64]);
});

test("a chunk takes no page from the budget, and a budget that it would exceed leaves the smallest one", () => {
  const manifest = modelOf(4000, 2 ** 25);
  const whole = planMemory(manifest, "float32");
  const least = planMemory(manifest, "float32", { prefillChunk: 64 });
  expect(whole).toMatchObject({ largestChunk: 512, pages: least.pages });
  for (const memoryBudget of [least.totalBytes - 1, least.totalBytes, whole.totalBytes - 1, whole.totalBytes]) {
    const plan = planMemory(manifest, "float32", { memoryBudget });
    const other = planMemory(manifest, "float32", { memoryBudget, prefillChunk: 64 });
    expect(plan.totalBytes).toBeLessThanOrEqual(memoryBudget);
    expect(plan.pages).toBe(other.pages);
  }
  expect(chunkOf(manifest, { memoryBudget: whole.totalBytes })).toBe(512);
  expect(chunkOf(manifest, { memoryBudget: whole.totalBytes - 1 })).toBe(256);
  expect(chunkOf(manifest, { memoryBudget: least.totalBytes })).toBe(64);
});

test("a chunk needs no buffer that a device may lack", () => {
  // 512 rows take 160 MiB, 256 of them 80 MiB.
  const manifest = modelOf(5 * 2 ** 16, 2 ** 31);
  expect(chunkOf(manifest)).toBe(256);
  expect(largestBuffer(manifest, "float32", poolWithin(manifest, "float32", {}))).toBe(80 * 2 ** 20);
  // One that an application sets is not changed: the device refuses it if its limits are smaller.
  expect(largestBuffer(manifest, "float32", { prefillChunk: 512 })).toBe(160 * 2 ** 20);
});

test("an application may set the chunk, which leaves no choice", () => {
  const manifest = modelOf(4000, 2 ** 25);
  for (const prefillChunk of [16, 100, 700]) {
    const pool = poolWithin(manifest, "float32", { prefillChunk });
    expect(limitsOf(manifest, pool)).toMatchObject({ tokens: prefillChunk, chunk: prefillChunk });
    expect(capacityOf(manifest, pool).S).toBe(prefillChunk);
  }
  // A step has a row for each sequence.
  expect(limitsOf(manifest, { prefillChunk: 1, maxSequences: 8 })).toMatchObject({ tokens: 8, chunk: 8 });
  const most = 2 * manifest.context;
  expect(limitsOf(manifest, { prefillChunk: 10 ** 6, maxSequences: 2 })).toMatchObject({ tokens: most, chunk: most });
});

test("a step of a short context, and batches of a model of vectors, stay as they are", () => {
  expect(chunkOf(modelOf(4000, 2 ** 25, { context: 200 }))).toBe(128);
  const { plans, ...text } = modelOf(4000, 2 ** 25);
  const embedding = { pooling: "last" } as unknown as Manifest["embedding"];
  const vectors = { ...text, embedding, plans: { embed: plans.generate } } as Manifest;
  expect([chunkOf({ ...text, plans }), chunkOf(vectors)]).toEqual([512, 64]);
});

test("the limits name the first chunk and the largest one", () => {
  const manifest = modelOf(4000, 2 ** 25);
  expect(limitsOf(manifest, poolWithin(manifest, "float32", {}))).toMatchObject({ tokens: 512, chunk: 64 });
});
