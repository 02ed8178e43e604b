// The memory plan: the memory that a bundle needs on the device, computed from its manifest before the download.

import { DeviceError } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import { paddedSize } from "./allocator.js";
import type { Dims } from "./expr.js";
import type { Mixture } from "./expert_layers.js";
import { mixtureOf } from "./expert_layers.js";
import type { Manifest } from "./manifest.js";
import type { Pool, PoolOptions } from "./memory.js";
import { capacityOf, largestBuffer, limitsOf, passingBuffers, sizeBytes } from "./memory.js";
import { HEAD_DIMS, PAGE_DIMS } from "./page_groups.js";
import { arraysOf } from "./plan.js";
import type { ActivationDtype } from "./variants.js";

export interface MemoryOptions extends PoolOptions {
  /**
   * The maximum number of bytes that the model may use on the device. Without ``pages``, all pages that fit into the
   * budget are allocated, up to the default number. If all experts of a mixture do not fit, the device holds those that
   * fit beside the pages, which then take a quarter of what the other weights leave at most.
   */
  readonly memoryBudget?: number | undefined;
  /**
   * The maximum number of bytes of a mixture's experts on the device, at least those that a token chooses. Others are
   * read from the store when a token chooses them. By default all, or what fits into the budget.
   */
  readonly expertMemory?: number | undefined;
}

/** The largest share of the memory that a mixture's other weights leave for keys and values beside its experts. */
const KEY_VALUE_SHARE = 0.25;

/** The chunks beside the default one that a device may choose, the largest first. */
export const CHUNKS: readonly number[] = [512, 256, 128];

/** The largest share of a model's memory that a larger chunk may take besides. */
const CHUNK_SHARE = 1 / 8;

/** The size of a storage buffer that every WebGPU device has (W3C, WebGPU, 3.6.2). */
const BUFFER_BYTES = 2 ** 27;

/** Sizes in bytes. */
export interface MemoryPlan {
  readonly weightBytes: number;
  /** Keys and values: ``pages`` pages of ``pageBytes``, and the pages of the layers with a window. */
  readonly keyValueBytes: number;
  readonly pageBytes: number;
  /** Intermediate values of the largest step, tables, and the states of each sequence. */
  readonly workingBytes: number;
  readonly totalBytes: number;
  /** What the bundle of a draft takes of ``totalBytes``, if there is one. */
  readonly draftBytes?: number;
  readonly pages: number;
  /** The number of experts of each layer that the device holds; null if it holds all weights. */
  readonly experts: number | null;
  /** The maximum number of tokens of one sequence: the bundle's context, or the capacity of the pages. */
  readonly context: number;
  /** Whether a full context fits into the budget. */
  readonly fits: boolean;
  /** The maximum number of new tokens in a step, for which the working memory is planned; undefined for ONNX Runtime. */
  readonly largestChunk?: number | undefined;
}

/**
 * The plan with the largest chunk that costs nothing else: it takes no page or expert from the budget, at most a share of
 * what the model needs anyway, and no buffer that some device could not have. Throws DeviceError if not even one page
 * fits into the budget.
 */
export function planMemory(manifest: Manifest, activation: ActivationDtype, options: MemoryOptions = {}): MemoryPlan {
  const least = planChunk(manifest, activation, options);
  const { memoryBudget = Infinity } = options;
  const isWhole = least.experts === null && least.pages === capacityOf(manifest, options).P;
  if (!isWhole || !choosesChunk(manifest, options)) return least;
  const most = Math.min(memoryBudget, least.totalBytes * (1 + CHUNK_SHARE));
  const mostOfBuffer = Math.max(BUFFER_BYTES, largestBuffer(manifest, activation, options));
  for (const largestChunk of CHUNKS) {
    const pool = { ...options, memoryBudget: undefined, largestChunk };
    const plan = planChunk(manifest, activation, pool);
    const fits = plan.totalBytes <= most && largestBuffer(manifest, activation, pool) <= mostOfBuffer;
    if (fits && largestChunk <= plan.context) return plan;
  }
  return least;
}

/** Whether the device chooses the chunk: that of prompts to which a text model answers. */
function choosesChunk(manifest: Manifest, { prefillChunk }: PoolOptions): boolean {
  const { embedding, classifier, speech, ctc } = manifest;
  return (prefillChunk ?? embedding ?? classifier ?? speech ?? ctc ?? null) === null;
}

/** The plan with the given chunk. */
function planChunk(manifest: Manifest, activation: ActivationDtype, options: MemoryOptions & Pool): MemoryPlan {
  const { memoryBudget = Infinity } = options;
  const capacity = capacityOf(manifest, options);
  const allWeights = Object.values(manifest.weights).reduce(
    (sum, { planes }) => sum + planes.reduce((total, { size }) => total + paddedSize(size), 0),
    0,
  );
  const bytesOfPage = (dims: readonly string[]): number => pageBytesOf(manifest, activation, capacity, dims);
  const pageBytes = bytesOfPage(["P", ...HEAD_DIMS]);
  const windowPageBytes = bytesOfPage(["PW"]);
  const workingBytes = working(manifest, activation, capacity);
  const requested = capacity.P ?? 0;
  // With fewer pages there are at most as many for the layers with a window.
  const windowPages = capacity.PW ?? 0;
  const keyValues = (pages: number): number => pages * pageBytes + Math.min(pages, windowPages) * windowPageBytes;
  const least = keyValues(options.pages ?? 1);
  const most = keyValues(options.pages ?? requested);
  const mixture = mixtureOf(manifest);
  const experts = mixture && expertsWithin(mixture, memoryBudget - workingBytes - allWeights, least, most, options);
  const weightBytes =
    allWeights - (mixture === null ? 0 : (mixture.number - (experts ?? mixture.number)) * mixture.expertBytes);
  const free = memoryBudget - weightBytes - workingBytes;
  const fitting = Math.floor(
    Math.max(free / (pageBytes + windowPageBytes), (free - windowPages * windowPageBytes) / pageBytes),
  );
  if (fitting < (options.pages ?? 1)) {
    const needed = weightBytes + workingBytes + least;
    throw new DeviceError(
      `The model takes at least ${formatBytes(needed)} on the device, ` +
        `the budget is ${formatBytes(memoryBudget)}; raise it, or use a smaller model`,
      { needed, budget: memoryBudget },
    );
  }
  const pages = Math.min(requested, fitting);
  const { context, tokens } = limitsOf(manifest, pages < requested ? { ...options, pages } : options);
  const totalBytes = weightBytes + keyValues(pages) + workingBytes;
  return {
    weightBytes,
    keyValueBytes: keyValues(pages),
    pageBytes,
    workingBytes,
    totalBytes,
    pages,
    experts,
    context,
    fits: context === manifest.context,
    largestChunk: tokens,
  };
}

/**
 * How many experts of each layer the device holds; null for all. ``free`` is what all weights leave of the budget,
 * which is negative if they exceed it. Keys and values need ``least`` bytes and use ``most``.
 */
function expertsWithin(
  { number, chosen, expertBytes }: Mixture,
  free: number,
  least: number,
  most: number,
  { pages, expertMemory }: MemoryOptions,
): number | null {
  const all = number * expertBytes;
  const share = pages === undefined ? Math.max(least, Math.min(most, (free + all) * KEY_VALUE_SHARE)) : least;
  const wanted = expertMemory ?? (free >= least ? all : free + all - share);
  const held = Math.floor(wanted / expertBytes);
  if (held >= number) return null;
  if (held < chosen && expertMemory !== undefined)
    throw new DeviceError(
      `A token chooses ${chosen} of ${number} experts in each layer, which take ` +
        `${formatBytes(chosen * expertBytes)}, expertMemory is ${formatBytes(expertMemory)}; raise it`,
      { needed: chosen * expertBytes, expertMemory },
    );
  return Math.max(held, chosen);
}

/** The pool for these options, within the budget. Throws the errors of `planMemory`. */
export function poolWithin(manifest: Manifest, activation: ActivationDtype, options: MemoryOptions): Pool {
  return poolOf(manifest, planMemory(manifest, activation, options), options);
}

/** The pool of a plan that has these options. */
export function poolOf(manifest: Manifest, { pages, largestChunk }: MemoryPlan, options: MemoryOptions): Pool {
  const pool = { ...options, largestChunk };
  return pages === capacityOf(manifest, pool).P ? pool : { ...pool, pages };
}

/** The bytes of one page of these dims in all states that have them, if there are such pages. */
function pageBytesOf(manifest: Manifest, activation: ActivationDtype, dims: Dims, names: readonly string[]): number {
  const one = Object.fromEntries(names.map((name) => [name, Math.min(1, dims[name] ?? 0)]));
  const paged = Object.values(arraysOf(manifest).states).filter(({ shape }) => names.includes(String(shape[0])));
  return paged.reduce((sum, entry) => sum + sizeBytes(entry, activation, { ...dims, ...one }), 0);
}

function working(manifest: Manifest, activation: ActivationDtype, dims: Dims): number {
  const { states, constants } = arraysOf(manifest);
  const paged = [...PAGE_DIMS, ...HEAD_DIMS];
  const slots = Object.values(states).filter(({ shape }) => !paged.includes(shape[0] as string));
  const arrays = [...slots, ...Object.values(passingBuffers(manifest))].map((entry) =>
    paddedSize(sizeBytes(entry, activation, dims)),
  );
  const tables = Object.values(constants).map(({ shape }) =>
    paddedSize(shape.reduce((product, size) => product * size, 4)),
  );
  return [...arrays, ...tables].reduce((sum, size) => sum + size, 0);
}
