// Allocates the memory of a plan: a buffer for each name, large enough for the largest batch.

import type { Allocator } from "./allocator.js";
import type { Dims } from "./expr.js";
import { elements } from "./expr.js";
import type { BufferEntry, ConstantEntry, Manifest } from "./manifest.js";
import type { PageGroup } from "./page_groups.js";
import { STATE_DIM, pageGroups } from "./page_groups.js";
import { arraysOf, planOf } from "./plan.js";
import type { ActivationDtype } from "./variants.js";
import { largestPlane } from "./weights.js";

/** The number of tokens of prompts in one forward, until the device has measured which number suits it. */
export const PREFILL_CHUNK = 64;

/** The default number of sequences that run at the same time. */
const MAX_SEQUENCES = 4;

/** The default number of complete texts in a batch, and of tokens unless the context is longer. */
const MAX_TEXTS = 64;
const MAX_TEXT_TOKENS = 4096;

/** The default number of slots for LoRA adapters in a bundle that accepts them. */
const MAX_ADAPTERS = 2;

/** The default number of snapshots of recurrent layers' states. */
const STATE_SNAPSHOTS = 4;

/** The default number of drafts that a step checks, of all sequences together. */
const SHARED_DRAFTS = 7;

/** The tokens of a transcript that are computed at once while they are those of an earlier one. */
const GUESSED_ROWS = 16;

/** The sizes of a runner's pools. */
export interface PoolOptions {
  /**
   * The number of sequences that run at the same time, and of their slots; 4 by default. For an encoder, the number of
   * texts in a batch; 64 by default.
   */
  readonly maxSequences?: number | undefined;
  /**
   * Pages of keys and values, in the group of the layers that see the whole context if the model has such layers; by
   * default enough for one sequence that fills the context, and one page that tuning may borrow. A sequence has at most
   * as many tokens as this number of pages.
   */
  readonly pages?: number | undefined;
  /** For an encoder, the number of tokens in a batch; by default 4096, and in any case at least a context. */
  readonly maxBatchTokens?: number | undefined;
  /** The number of LoRA adapters that can be loaded at the same time, if the bundle accepts them; 2 by default. */
  readonly maxAdapters?: number | undefined;
  /**
   * For a model with recurrent layers, the number of snapshots of their states that are retained for later turns and
   * other conversations, beside the states of the sequences that run; 4 by default.
   */
  readonly stateSnapshots?: number | undefined;
  /**
   * The number of drafts of each sequence that a step checks. By default, all sequences together have 7, and 0 in a model
   * with recurrent layers, for which each sequence would need another state.
   */
  readonly draftTokens?: number | undefined;
  /**
   * The number of tokens of prompts in a step. By default it is 64 until the device has measured which of 64, 128, 256
   * and 512 suits it.
   */
  readonly prefillChunk?: number | undefined;
}

/** The pools that were planned. */
export interface Pool extends PoolOptions {
  /** The largest chunk that the device may choose. */
  readonly largestChunk?: number | undefined;
}

/** The limits of a batch, and the sizes of the model and its pools. */
export interface RunnerLimits {
  /** The maximum number of new tokens in a batch. */
  readonly tokens: number;
  /** The number of new tokens in a step until the device has measured a better one; by default ``tokens``. */
  readonly chunk?: number;
  /** Whether the tokens of a text may be in several batches; false for an encoder, which reads it at once. */
  readonly splitsTexts?: boolean;
  /** The maximum number of sequences and slots. */
  readonly sequences: number;
  /** The maximum number of sampled rows; by default one for each sequence. More of them can check drafts. */
  readonly rows?: number;
  /** The pools of pages. */
  readonly groups: readonly PageGroup[];
  /** The number of tokens in a page. */
  readonly pageSize: number;
  /** The maximum number of tokens in a sequence. */
  readonly context: number;
  readonly vocabSize: number;
  /** The number of slots for LoRA adapters; by default none. */
  readonly adapters?: number;
  /** The number of slots for the states of recurrent layers; by default none. */
  readonly states?: number;
  /** The pages of the model's own heads, if they guess tokens. */
  readonly draftPages?: number;
  /** The maximum number of patches in the tile of a picture; by default, the model sees no pictures. */
  readonly patches?: number;
}

/** ``buffers`` contains the states and constants by name. */
export interface Memory {
  readonly buffers: Map<string, GPUBuffer>;
  readonly stateBytes: number;
}

/** The limits of a runner with these pools. */
export function limitsOf(
  manifest: Manifest,
  {
    maxSequences: sequences,
    maxBatchTokens = MAX_TEXT_TOKENS,
    pages,
    maxAdapters = MAX_ADAPTERS,
    stateSnapshots = STATE_SNAPSHOTS,
    draftTokens,
    prefillChunk = PREFILL_CHUNK,
    largestChunk = 0,
  }: Pool,
): RunnerLimits {
  const { context, page_size: pageSize, spec } = manifest;
  const isRecurrent = Object.values(planOf(manifest).states).some(({ shape }) => shape[0] === STATE_DIM);
  const isPaged = planOf(manifest).inputs.page_ids !== undefined;
  const maxSequences = sequences ?? (isPaged ? MAX_SEQUENCES : MAX_TEXTS);
  const generates = isPaged && planOf(manifest).outputs.logits !== undefined;
  // They do not make a step longer.
  const shared = generates && !isRecurrent ? Math.max(0, Math.min(SHARED_DRAFTS, prefillChunk - maxSequences)) : 0;
  const drafts = draftTokens === undefined ? shared : maxSequences * draftTokens;
  const rows = Math.max(maxSequences + drafts, spec.audio === null ? 0 : GUESSED_ROWS);
  // A window of sound is read at once, and so are a sound whose tower reads it whole, and a picture that is seen both ways.
  const { both_ways: bothWays = "none", tile_patches: patches = 0, block = 1 } = spec.vision ?? {};
  const seen = bothWays === "none" ? 0 : patches / block ** 2;
  const heard = manifest.plans.hearing !== undefined && spec.hearing?.whole === true ? spec.hearing.sound_rows : 0;
  // An encoder of sound reads one window at a time.
  const ofTexts = manifest.ctc === null ? maxBatchTokens : 0;
  const least = isPaged ? Math.max(spec.audio?.positions ?? 0, heard, seen) : Math.max(context, ofTexts);
  // A step never has more tokens than its sequences.
  const chunk = Math.max(Math.min(prefillChunk, maxSequences * context), rows, least);
  const tokens = Math.max(chunk, largestChunk);
  const sizes = { context, pageSize, maxTokens: tokens };
  const groups = isPaged ? pageGroups(manifest, sizes, maxSequences, pages) : [];
  return {
    tokens,
    chunk,
    splitsTexts: isPaged,
    sequences: maxSequences,
    rows,
    groups,
    pageSize,
    context: isPaged ? Math.min(context, (pages ?? Infinity) * pageSize) : context,
    vocabSize: spec.vocab_size,
    adapters: manifest.lora === null ? 0 : maxAdapters,
    // While drafts are checked, the state before them is retained.
    states: isRecurrent ? maxSequences * (drafts > 0 ? 2 : 1) + (generates ? stateSnapshots : 0) : 0,
    draftPages: manifest.plans.draft === undefined ? 0 : (groups[0]?.pages ?? 0),
    patches: manifest.plans.vision === undefined ? 0 : patches,
  };
}

/** The dims of the largest batch. */
export function capacityOf(manifest: Manifest, options: Pool): Dims {
  const { context, page_size: pageSize, spec } = manifest;
  const limits = limitsOf(manifest, options);
  const {
    tokens: S,
    sequences,
    rows: R = sequences,
    groups,
    adapters: M = 0,
    states: Z = 0,
    draftPages: PD = 0,
  } = limits;
  // A window of sound may be two sequences.
  const B = spec.audio ? Math.max(sequences, 2) : sequences;
  const V = limits.patches ?? 0;
  // Each tile has at least one block, which becomes one feature.
  const I = Math.floor(V / (spec.vision?.block ?? 1) ** 2);
  const heard = spec.audio?.positions ?? 0;
  const T = Math.max(context, heard);
  const PS = Math.ceil(heard / pageSize);
  // A page that sequences share is listed for each of them.
  const L = Math.ceil(T / pageSize) * B;
  const [P = 0, PW] = groups.map(({ pages }) => pages);
  return {
    S,
    T,
    L,
    P,
    ...(PW === undefined ? {} : { PW, LW: L }),
    B,
    R,
    N: sequences,
    A: R,
    W: R,
    DR: R,
    M,
    Z,
    PS,
    LS: PS * B,
    PD,
    PH: PD,
    H: PD > 0 ? S : 0,
    G: M > 0 ? S : 0,
    V,
    I,
    F: V > 0 ? Math.max(S, I) : 0,
    C: (spec.vision?.frames ?? 1) > 1 ? V : 0,
  };
}

/** `Room` allocates the other buffers. */
export function allocateMemory(
  allocator: Allocator,
  manifest: Manifest,
  activation: ActivationDtype,
  capacity: Dims,
): Memory {
  const { states, constants } = arraysOf(manifest);
  const buffers = new Map<string, GPUBuffer>();
  for (const [name, entry] of Object.entries(states))
    buffers.set(name, allocator.storage(name, sizeBytes(entry, activation, capacity)));
  const stateBytes = [...buffers.values()].reduce((sum, buffer) => sum + buffer.size, 0);
  for (const [name, entry] of Object.entries(constants)) {
    const array = computeConstant(entry);
    const buffer = allocator.storage(name, array.byteLength);
    allocator.device.queue.writeBuffer(buffer, 0, array);
    buffers.set(name, buffer);
  }
  return { buffers, stateBytes };
}

/** The size in bytes of the largest buffer that a manifest needs, including weights. */
export function largestBuffer(manifest: Manifest, activation: ActivationDtype, pool: Pool = {}): number {
  const { inputs, states, constants } = arraysOf(manifest);
  const capacity = capacityOf(manifest, pool);
  // The arena holds all inputs.
  const inputBytes = Object.values(inputs).reduce((sum, { shape }) => sum + 4 * elements(shape, capacity), 0);
  const entries = [...Object.values(states), ...Object.values(passingBuffers(manifest))].map((entry) =>
    sizeBytes(entry, activation, capacity),
  );
  const tables = Object.values(constants).map(({ shape }) => shape.reduce((product, size) => product * size, 4));
  return Math.max(largestPlane(manifest), inputBytes, ...entries, ...tables);
}

/**
 * The buffers that are used within one forward: the plan's buffers, the inputs that are gathered, and as "scratch.NAME"
 * those used within one step.
 */
export function passingBuffers(manifest: Manifest): Readonly<Record<string, BufferEntry>> {
  const scratch = Object.entries(manifest.scratch).map(([name, entry]) => [`scratch.${name}`, entry] as const);
  const { buffers, inputs, gathered } = arraysOf(manifest);
  const tables = Object.entries(inputs).filter(([name]) => Object.hasOwn(gathered, name));
  return { ...buffers, ...Object.fromEntries([...tables, ...scratch]) };
}

export function sizeBytes(entry: BufferEntry, activation: ActivationDtype, dims: Dims): number {
  return elements(entry.shape, dims) * bytesOf(entry.dtype === "activation" ? activation : entry.dtype);
}

function bytesOf(dtype: "float32" | "int32" | "uint32" | "float16" | "bfloat16" | "int8"): number {
  switch (dtype) {
    case "float32":
    case "int32":
    case "uint32":
    // Activations of int8 are stored as float32; projections round their input.
    case "int8":
      return 4;
    case "float16":
    case "bfloat16":
      return 2;
    default:
      return dtype satisfies never;
  }
}

/** The array of a constant that a bundle describes instead of containing it, in the shape of its entry. */
export function computeConstant(entry: ConstantEntry): Float32Array<ArrayBuffer> {
  // "rope" is the only kind; the type check fails here when there is a second one.
  entry.kind satisfies "rope";
  return ropeTable(entry);
}

/**
 * (positions, R/2, 2) float32: ``scale`` times cosine and sine of position * inverse frequency, computed in float64, for
 * the positions from ``first`` on.
 */
function ropeTable({ inverse_frequencies, shape, scale, first }: ConstantEntry): Float32Array<ArrayBuffer> {
  const [positions = 0] = shape;
  const table = new Float32Array(positions * inverse_frequencies.length * 2);
  let next = 0;
  // By rows: beyond 2^53, which a damaged manifest may name, adding one to a position changes nothing.
  for (let row = 0; row < positions; row++) {
    const position = first + row;
    for (const frequency of inverse_frequencies) {
      table[next++] = scale * Math.cos(position * frequency);
      table[next++] = scale * Math.sin(position * frequency);
    }
  }
  return table;
}

/** The tokens of the first batches of complete texts. */
const FIRST_TOKENS = 256;

/** Buffers by name, for batches of these dims. */
export interface RoomBuffers {
  readonly dims: Dims;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
}

/** The buffers of a plan. They start small and grow with the batches. */
export class Room {
  #dims: Dims;

  /** ``capacity`` contains the dims of the largest batch, and ``buffers`` receives the buffers by name. */
  constructor(
    private readonly allocator: Allocator,
    private readonly manifest: Manifest,
    private readonly activation: ActivationDtype,
    private readonly capacity: Dims,
    private readonly buffers: Map<string, GPUBuffer>,
    tokens = FIRST_TOKENS,
  ) {
    this.#dims = capacity;
    this.use(this.allocate(tokens));
  }

  suffices(tokens: number): boolean {
    return tokens <= (this.#dims.S ?? 0);
  }

  /** Buffers for batches of ``tokens``, within the capacity; `use` or `free` them. */
  allocate(tokens: number): RoomBuffers {
    const dims = { ...this.capacity, S: Math.min(this.capacity.S ?? 0, tokens) };
    const entries = Object.entries(passingBuffers(this.manifest));
    const sizes = entries.map(([name, entry]) => [name, sizeBytes(entry, this.activation, dims)] as const);
    return { dims, buffers: new Map(sizes.map(([name, size]) => [name, this.allocator.storage(name, size)])) };
  }

  /** Replace the buffers. Work that was submitted still uses the old ones. */
  use({ dims, buffers }: RoomBuffers): void {
    for (const [name, buffer] of buffers) {
      const before = this.buffers.get(name);
      if (before !== undefined) this.allocator.free(before);
      this.buffers.set(name, buffer);
    }
    this.#dims = dims;
  }

  free({ buffers }: RoomBuffers): void {
    for (const buffer of buffers.values()) this.allocator.free(buffer);
  }
}
