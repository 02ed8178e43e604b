import { expect, test } from "vitest";

import { toFloat16, fromFloat16 } from "../../src/retrieval/vectors.js";
import { GpuVectors } from "../../src/retrieval/gpu_vectors.js";
import type { VectorType } from "../../src/retrieval/vectors.js";
import { Vectors } from "../../src/retrieval/vectors.js";
import { dawn } from "../../tools/dawn.js";
import { mulberry32 } from "../engine/mulberry32.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;

function randomVector(random: () => number, dimensions: number): Float32Array {
  return Float32Array.from({ length: dimensions }, () => random() * 2 - 1);
}

function filled(type: VectorType, dimensions: number, count: number): { vectors: Vectors; exact: Float32Array[] } {
  const random = mulberry32(count);
  const vectors = new Vectors(type, dimensions);
  const exact = Array.from({ length: count }, () => vectors.unit(randomVector(random, dimensions)));
  for (const vector of exact) vectors.add(vector);
  return { vectors, exact };
}

test("float16 rounds to the nearest, to even, and every half is itself", () => {
  const values = Float32Array.of(
    1,
    -1,
    0,
    1 / 3,
    2 ** -14,
    2 ** -15 * 1.3,
    2 ** -24,
    2 ** -25,
    2 ** -26,
    1 + 2 ** -11,
    1 + 3 * 2 ** -11,
  );
  const halves = new Uint16Array(values.length);
  toFloat16(values, halves);
  expect([...halves]).toEqual([0x3c00, 0xbc00, 0, 0x3555, 0x0400, 0x029a, 1, 0, 0, 0x3c00, 0x3c02]);
  const table = fromFloat16();
  const all = Float32Array.from({ length: 0x3c01 }, (_, half) => table[half] ?? NaN);
  const again = new Uint16Array(all.length);
  toFloat16(all, again);
  expect(again.every((half, index) => half === index)).toBe(true);
});

test.each(["float16", "int8"] as const)("vectors in %s give the cosines of the exact ones, nearly", (type) => {
  const { vectors, exact } = filled(type, 37, 90);
  const query = vectors.unit(randomVector(mulberry32(1), 37));
  const cosines = exact.map((vector) => vector.reduce((sum, value, index) => sum + value * (query[index] ?? 0), 0));
  const found = vectors.search(query, 90);
  expect(found).toHaveLength(90);
  for (const { slot, score } of found)
    expect(Math.abs(score - (cosines[slot] ?? 9))).toBeLessThan(type === "int8" ? 0.02 : 1e-3);
});

test.each([
  // One more than a workgroup sorts, and with more than one page.
  ["float16", 37, 1025],
  ["int8", 30, 17_000],
] as const)("%s: the GPU finds what JavaScript finds (%d dimensions, %d vectors)", async (type, dimensions, count) => {
  if (!hasAdapter) return;
  const { vectors } = filled(type, dimensions, count);
  for (const slot of [0, 3, 900]) vectors.remove(slot);
  const device = await GpuVectors.open(vectors, gpu, true);
  if (device === null) throw new Error("Dawn has an adapter and no device");
  const random = mulberry32(5);
  try {
    for (const wanted of [1, 10, 1000]) {
      const query = vectors.unit(randomVector(random, dimensions));
      const expected = vectors.search(query, wanted);
      const found = await device.search(query, wanted);
      expect(found.length).toBe(expected.length);
      for (const [rank, { score }] of expected.entries()) expect(found[rank]?.score).toBeCloseTo(score, 5);
      expect(new Set(found.slice(0, 5).map(({ slot }) => slot))).toEqual(
        new Set(expected.slice(0, 5).map(({ slot }) => slot)),
      );
      // The next search sees what is added and removed now.
      vectors.add(query);
      expect((await device.search(query, 1))[0]?.slot).toBe(vectors.slots - 1);
      vectors.remove(vectors.slots - 1);
    }
  } finally {
    device.destroy();
  }
});

test("vectors without a direction, and of another size, are refused", () => {
  const vectors = new Vectors("float16", 3);
  for (const values of [
    [0, 0, 0],
    [NaN, 1, 1],
    [Infinity, 0, 0],
  ])
    expect(() => {
      vectors.add(Float32Array.from(values));
    }).toThrow(/no direction/);
  expect(() => {
    vectors.add(new Float32Array(4));
  }).toThrow(/4 dimensions, the index has 3/);
});
