// The parts of a runner: its weights and buffers on the device, and the schedules of its plans. They are prepared while
// the weights are downloaded and all kernels compile.

import { DeviceError } from "../errors.js";
import type { ExpertCache } from "../experts/index.js";
import type { Allocator } from "./allocator.js";
import { Arena } from "./arena.js";
import type { Bundle } from "./bundle.js";
import type { Choices } from "./choices.js";
import { NO_CHOICES, variantName } from "./choices.js";
import type { OpenDevice } from "./device.js";
import { mixtureOf } from "./expert_layers.js";
import type { Dims } from "./expr.js";
import { batchInputs } from "./host_tables.js";
import { importExperts } from "./import_later.js";
import { KvPages } from "./kv_pages.js";
import type { Expr, Manifest, PlanEntry, VariantEntry } from "./manifest.js";
import type { RunnerLimits } from "./memory.js";
import { allocateMemory, capacityOf, limitsOf, Room } from "./memory.js";
import type { MemoryOptions } from "./memory_plan.js";
import { planMemory, poolOf } from "./memory_plan.js";
import { compileKernels } from "./pipelines.js";
import { arraysOf, planOf } from "./plan.js";
import { Results } from "./results.js";
import { Schedule, kernelNames } from "./schedule.js";
import { SlotStates } from "./slot_states.js";
import type { OnBytes } from "./source.js";
import { rowsWithout, selectRows } from "./variants.js";
import { allocateWeights, loadWeights, planeKey } from "./weights.js";

export interface RunnerOptions extends MemoryOptions {
  readonly signal?: AbortSignal;
  /** Called when bytes of the weights arrive. */
  readonly onBytes?: OnBytes;
  /** Called with the number of compiled kernels. */
  readonly onKernel?: (done: number, total: number) => void;
  /** By default, the compiler's choices. */
  readonly choices?: Choices;
  /** Also prepare rows that do not run under these choices, so that `choose` may select them. */
  readonly alternatives?: boolean;
  /** The number of new tokens in a step that suits this device, if it is known. */
  readonly chunk?: number | undefined;
}

/** Sizes in bytes on the device. ``dispatchesPerToken``: the dispatches for a forward of one token. */
export interface RunnerInfo {
  readonly kernels: number;
  readonly dispatchesPerToken: number;
  readonly weightBytes: number;
  readonly stateBytes: number;
  readonly totalBytes: number;
}

export interface RunnerParts {
  readonly manifest: Manifest;
  readonly rows: ReadonlyMap<string, readonly VariantEntry[]>;
  readonly refused: readonly string[];
  readonly open: OpenDevice;
  readonly allocator: Allocator;
  readonly arena: Arena;
  readonly schedule: Schedule;
  /** That of the model's own heads, if they guess tokens. */
  readonly heads: Schedule | null;
  /** That of the tower, if the model sees pictures. */
  readonly vision: Schedule | null;
  /** That of the encoder, if the model reads sound. */
  readonly hearing: Schedule | null;
  readonly audio: Schedule | null;
  readonly results: Results;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  readonly room: Room;
  /** The shards of the tables and experts that stay on the host, by number. */
  readonly files: ReadonlyMap<number, Blob>;
  /** Null if all experts are on the device. */
  readonly experts: ExpertCache | null;
  readonly pages: KvPages;
  readonly slotStates: SlotStates;
  readonly limits: RunnerLimits;
  /** The dims of the largest batch. */
  readonly capacity: Dims;
  readonly info: Omit<RunnerInfo, "totalBytes">;
}

/** Downloads, checks and uploads the weights while all kernels compile. Throws as `Runner.create`. */
export async function prepareParts(
  bundle: Bundle,
  open: OpenDevice,
  allocator: Allocator,
  signal: AbortSignal,
  options: RunnerOptions,
): Promise<RunnerParts> {
  const { manifest, source } = bundle;
  const { device, activation, features } = open;
  const { choices = NO_CHOICES, alternatives = false } = options;
  const plan = planMemory(manifest, activation, options);
  const pool = poolOf(manifest, plan, options);
  const mixture = plan.experts === null ? null : mixtureOf(manifest);
  const held = plan.experts ?? 0;
  const shares = new Map(
    mixture?.layers.flatMap(({ weights }) => weights.map((name) => [name, held / mixture.number])),
  );
  const capacity = capacityOf(manifest, pool);
  const selected = selectRows(manifest, activation, features, alternatives ? null : choices, capacity);
  const names = kernelNames(selected);
  const uniforms = new Map<string, readonly Expr[]>(
    names.map((name) => [name, manifest.kernels[name]?.uniforms ?? []]),
  );

  // All memory is allocated before the download starts, so that a model that does not fit fails immediately.
  device.pushErrorScope("out-of-memory");
  const weights = allocateWeights(allocator, manifest, shares);
  const weightBytes = allocator.bytes;
  const memory = allocateMemory(allocator, manifest, activation, capacity);
  const limits = limitsOf(manifest, pool);
  const first = limits.splitsTexts === false ? undefined : leastChunk(limits);
  const room = new Room(allocator, manifest, activation, capacity, memory.buffers, first);
  const arena = new Arena(allocator, batchInputs(arraysOf(manifest)), uniforms, capacity);
  const results = new Results(manifest);
  await requireMemory(device, allocator.bytes);

  let compiled = 0;
  options.onKernel?.(compiled, names.length);
  const [{ kernels, refused }, files, module] = await Promise.all([
    compileKernels(device, manifest, names, source, signal, () => {
      compiled++;
      options.onKernel?.(compiled, names.length);
    }),
    loadWeights(device, weights, manifest, shares, source, signal, options.onBytes),
    mixture && importExperts(),
  ]);

  const find = (name: string, plane: string | null): GPUBindingResource | undefined => {
    // A vector has one plane, "w", which kernels need not name.
    const buffer = memory.buffers.get(name) ?? weights.get(planeKey(name, plane ?? "w"));
    return buffer === undefined ? arena.input(name) : { buffer };
  };
  const rows = rowsWithout(selected, refused);
  const refusedVariants = [
    ...new Set(
      [...selected].flatMap(([list, all]) => all.filter((row) => !rows.get(list)?.includes(row)).map(variantName)),
    ),
  ];
  const scheduleOf = (plan: PlanEntry): Schedule => {
    const schedule = new Schedule(device, plan, rows, kernels, find, (kernel) => arena.uniform(kernel));
    schedule.choose(choices);
    return schedule;
  };
  const { draft, vision, hearing, audio } = manifest.plans;
  const schedule = scheduleOf(planOf(manifest));
  const few = { S: 1, B: 1, R: 1, L: 1, LW: 1, T: 1, A: 0, W: 0, DR: 0, G: 0, V: 0, I: 0, F: 0, C: 0 };
  const one = { ...capacity, ...few, H: capacity.PD ? 1 : 0 };
  return {
    manifest,
    rows,
    refused: refusedVariants,
    open,
    allocator,
    arena,
    schedule,
    heads: draft ? scheduleOf(draft) : null,
    vision: vision ? scheduleOf(vision) : null,
    hearing: hearing ? scheduleOf(hearing) : null,
    audio: audio ? scheduleOf(audio) : null,
    results,
    buffers: memory.buffers,
    room,
    files,
    experts:
      mixture &&
      (module?.open({
        mixture,
        held,
        maxTokens: limits.tokens,
        manifest,
        allocator,
        weights,
        buffers: memory.buffers,
        files,
      }) ??
        null),
    pages: new KvPages(allocator, manifest, activation, capacity, memory.buffers),
    slotStates: new SlotStates(allocator, manifest, capacity, memory.buffers),
    limits,
    capacity,
    info: {
      kernels: names.length,
      dispatchesPerToken: schedule.dispatches(one).length,
      weightBytes,
      stateBytes: memory.stateBytes,
    },
  };
}

/** The number of new tokens in a step that every device can compute. */
export function leastChunk({ splitsTexts, tokens, chunk = tokens }: RunnerLimits): number {
  return splitsTexts === false ? tokens : chunk;
}

/** Throws DeviceError if the allocations since `pushErrorScope` did not fit; ``size``: that of all. */
export async function requireMemory(device: GPUDevice, size: number): Promise<void> {
  const error = await device.popErrorScope();
  if (error !== null) {
    throw new DeviceError(
      `The device has no room for the model's ${Math.ceil(size / 2 ** 20)} MiB (${error.message}); ` +
        "use a smaller model or context",
      {
        bytes: size,
      },
    );
  }
}
