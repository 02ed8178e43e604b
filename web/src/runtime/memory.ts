// What a plan needs in memory. A manifest, the activation dtype and the largest batch flow in; buffers by the plan's names flow out.

import type { Allocator } from "./allocator.js";
import { computeConstant } from "./constants.js";
import type { Dims } from "./expr.js";
import { elements } from "./expr.js";
import type { BufferEntry, Manifest } from "./manifest.js";
import { planOf } from "./plan.js";
import type { ActivationDtype } from "./variants.js";
import { largestPlane } from "./weights.js";

/** New tokens that one forward takes at most; a longer prompt goes in several. */
export const PREFILL_CHUNK = 64;

/** Sequences that are run side by side, where it is not said. */
const MAX_SEQUENCES = 4;

/** How much a runner takes. */
export interface PoolOptions {
  /** Sequences side by side, and slots for them; 4 by default. */
  readonly maxSequences?: number | undefined;
  /** Pages of keys and values; by default enough for one sequence that fills the context, and one that tuning may borrow. */
  readonly pages?: number | undefined;
}

/** ``buffers`` holds states, constants and passing values, by name. */
export interface Memory {
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  readonly stateBytes: number;
}

/** The dims of the largest batch. */
export function capacityOf(manifest: Manifest, { maxSequences = MAX_SEQUENCES, pages }: PoolOptions): Dims {
  const perSequence = Math.ceil(manifest.context / manifest.page_size);
  const rows = { B: maxSequences, R: maxSequences, N: maxSequences, A: maxSequences, W: maxSequences };
  // A page that sequences share is listed for each of them.
  return {
    S: Math.max(PREFILL_CHUNK, maxSequences),
    T: manifest.context,
    L: perSequence * maxSequences,
    P: pages ?? perSequence + 1,
    ...rows,
  };
}

export function allocateMemory(
  allocator: Allocator,
  manifest: Manifest,
  activation: ActivationDtype,
  capacity: Dims,
): Memory {
  const { states, constants } = planOf(manifest);
  const buffers = new Map<string, GPUBuffer>();
  for (const [name, entry] of Object.entries(states))
    buffers.set(name, allocator.storage(name, sizeBytes(entry, activation, capacity)));
  const stateBytes = [...buffers.values()].reduce((sum, buffer) => sum + buffer.size, 0);
  for (const [name, entry] of Object.entries(passingBuffers(manifest)))
    buffers.set(name, allocator.storage(name, sizeBytes(entry, activation, capacity)));
  for (const [name, entry] of Object.entries(constants)) {
    const array = computeConstant(entry);
    const buffer = allocator.storage(name, array.byteLength);
    allocator.device.queue.writeBuffer(buffer, 0, array);
    buffers.set(name, buffer);
  }
  return { buffers, stateBytes };
}

/** The bytes of the largest single buffer that a manifest asks for, weights included. */
export function largestBuffer(manifest: Manifest, activation: ActivationDtype, pool: PoolOptions = {}): number {
  const { states, constants } = planOf(manifest);
  const capacity = capacityOf(manifest, pool);
  const entries = [...Object.values(states), ...Object.values(passingBuffers(manifest))].map((entry) =>
    sizeBytes(entry, activation, capacity),
  );
  const tables = Object.values(constants).map(({ shape }) => shape.reduce((product, size) => product * size, 4));
  return Math.max(largestPlane(manifest), ...entries, ...tables);
}

/** What lives within one forward: the plan's buffers, and as "scratch.NAME" what lives within one step. */
export function passingBuffers(manifest: Manifest): Readonly<Record<string, BufferEntry>> {
  const scratch = Object.entries(manifest.scratch).map(([name, entry]) => [`scratch.${name}`, entry] as const);
  return { ...planOf(manifest).buffers, ...Object.fromEntries(scratch) };
}

export function sizeBytes(entry: BufferEntry, activation: ActivationDtype, dims: Dims): number {
  return elements(entry.shape, dims) * bytesOf(entry.dtype === "activation" ? activation : entry.dtype);
}

function bytesOf(dtype: "float32" | "int32" | "uint32" | "float16" | "bfloat16" | "int8"): number {
  switch (dtype) {
    case "float32":
    case "int32":
    case "uint32":
    // As activations it lies in memory as float32. No bundle for WebGPU has it.
    case "int8":
      return 4;
    case "float16":
    case "bfloat16":
      return 2;
    default:
      return dtype satisfies never;
  }
}
