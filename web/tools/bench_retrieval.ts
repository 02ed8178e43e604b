// Measures exact search over random vectors of 384 dimensions: in JavaScript, and on the adapter that Dawn finds.
//
//     node dist/tools/bench_retrieval.js [SIZES, such as 1000,10000,100000]

import { GpuVectors } from "../src/retrieval/gpu_vectors.js";
import type { VectorType } from "../src/retrieval/vectors.js";
import { VECTOR_TYPES, Vectors } from "../src/retrieval/vectors.js";
import { dawn } from "./dawn.js";

const DIMENSIONS = 384;
const COUNT = 10;
const REPEATS = 7;

/** The median time of a search in milliseconds. The first one, which uploads the vectors, is not counted. */
async function medianMs(search: (query: Float32Array) => unknown, query: Float32Array): Promise<number> {
  const times: number[] = [];
  await search(query);
  for (let repeat = 0; repeat < REPEATS; repeat++) {
    const began = performance.now();
    await search(query);
    times.push(performance.now() - began);
  }
  return times.sort((first, second) => first - second)[(REPEATS - 1) / 2] ?? NaN;
}

function randomVector(): Float32Array {
  return Float32Array.from({ length: DIMENSIONS }, () => Math.random() - 0.5);
}

async function measure(type: VectorType, size: number): Promise<void> {
  const vectors = new Vectors(type, DIMENSIONS);
  for (let slot = 0; slot < size; slot++) vectors.add(randomVector());
  const query = vectors.unit(randomVector());
  const script = await medianMs((each) => vectors.search(each, COUNT), query);
  const gpu = await GpuVectors.open(vectors, dawn(), true);
  const device =
    gpu === null
      ? "no adapter"
      : `${(await medianMs((each) => gpu.search(each, COUNT), query)).toFixed(1)} ms on ${gpu.adapter}`;
  gpu?.destroy();
  console.log(`${size} vectors, ${type}: ${script.toFixed(1)} ms in JavaScript, ${device}`);
}

const sizes = (process.argv[2] ?? "1000,10000,100000").split(",").map(Number);
for (const type of VECTOR_TYPES) for (const size of sizes) await measure(type, size);
process.exit(0);
