// The runner: a bundle's plan on one device. Batches flow in; next tokens or logits flow out, and keys and values stay in the device's pages.

import { BundleError, DeviceError, RequestError, messageOf } from "../errors.js";
import { Allocator } from "./allocator.js";
import { Arena } from "./arena.js";
import type { Batch } from "./batch.js";
import { dimsOf } from "./batch.js";
import type { Bundle } from "./bundle.js";
import type { Choices } from "./choices.js";
import { NO_CHOICES, variantName } from "./choices.js";
import type { OpenDevice } from "./device.js";
import type { Dims } from "./expr.js";
import type { Expr, Manifest, VariantEntry } from "./manifest.js";
import { allocateMemory, capacityOf } from "./memory.js";
import type { CompiledKernel } from "./pipelines.js";
import { compileKernels } from "./pipelines.js";
import { Readback } from "./readback.js";
import type { Dispatch } from "./schedule.js";
import { Schedule, kernelNames } from "./schedule.js";
import { Stopwatch } from "./stopwatch.js";
import { rowsWithout, selectRows } from "./variants.js";
import { allocateWeights, loadWeights, planeKey } from "./weights.js";

export interface RunnerOptions {
  readonly signal?: AbortSignal;
  /** Told how many bytes of weights have just come. */
  readonly onBytes?: (count: number) => void;
  /** Told how many of the kernels are compiled. */
  readonly onKernel?: (done: number, total: number) => void;
  /** The compiler's own where there are none. */
  readonly choices?: Choices;
  /** Make ready also what does not run under these choices, so that `choose` may take it. */
  readonly alternatives?: boolean;
}

/** Sizes in bytes on the device. ``dispatchesPerToken`` counts those of a forward of one token. */
export interface RunnerInfo {
  readonly kernels: number;
  readonly dispatchesPerToken: number;
  readonly weightBytes: number;
  readonly stateBytes: number;
  readonly totalBytes: number;
}

type OutputRole = "logits" | "next_token_ids";

export class Runner {
  readonly info: RunnerInfo;
  #problem: DeviceError | null = null;
  #stopwatch: Stopwatch | null = null;

  private constructor(
    readonly manifest: Manifest,
    /** By list, the variants that are ready to run. */
    readonly rows: ReadonlyMap<string, readonly VariantEntry[]>,
    /** Variants with a kernel that the device does not take. */
    readonly refused: readonly string[],
    private readonly open: OpenDevice,
    private readonly allocator: Allocator,
    private readonly arena: Arena,
    private readonly schedule: Schedule,
    private readonly readbacks: Readonly<Record<OutputRole, Readback>>,
    private readonly capacity: Dims,
    sizes: Pick<RunnerInfo, "kernels" | "weightBytes" | "stateBytes">,
  ) {
    const one = { ...capacity, S: 1, B: 1, R: 1, L: 1, T: 1 };
    this.info = { ...sizes, dispatchesPerToken: schedule.dispatches(one).length, totalBytes: allocator.bytes };
    void open.device.lost.then(({ reason, message }) => {
      this.#problem ??= new DeviceError(`The WebGPU device was lost (${reason}: ${message}); load the model again`, { reason });
    });
    open.device.addEventListener("uncapturederror", ({ error }) => {
      this.#problem ??= new DeviceError(`The WebGPU device reports an error (${error.message}); load the model again`);
    });
  }

  /**
   * Download, check and upload the weights while all kernels compile. The runner owns the device from here on: `destroy` frees it, and so does a
   * failure to create. Throws BundleError, DeviceError, or the signal's reason.
   */
  static async create(bundle: Bundle, open: OpenDevice, options: RunnerOptions = {}): Promise<Runner> {
    const allocator = new Allocator(open.device);
    const failed = new AbortController();
    const signal = options.signal === undefined ? failed.signal : AbortSignal.any([options.signal, failed.signal]);
    try {
      return await Runner.build(bundle, open, allocator, signal, options);
    } catch (error) {
      // What still downloads would be for nothing.
      failed.abort(error);
      allocator.destroy();
      open.device.destroy();
      throw error;
    }
  }

  private static async build(bundle: Bundle, open: OpenDevice, allocator: Allocator, signal: AbortSignal, options: RunnerOptions): Promise<Runner> {
    const { manifest, source } = bundle;
    const { device, activation, features } = open;
    const { choices = NO_CHOICES, alternatives = false } = options;
    const wanted = selectRows(manifest, activation, features, alternatives ? null : choices);
    const names = kernelNames(wanted);
    const uniforms = new Map<string, readonly Expr[]>(names.map((name) => [name, manifest.kernels[name]?.uniforms ?? []]));
    const capacity = capacityOf(manifest);

    // All memory is taken before the download starts: a model that does not fit fails at once.
    device.pushErrorScope("out-of-memory");
    const weights = allocateWeights(allocator, manifest);
    const weightBytes = allocator.bytes;
    const memory = allocateMemory(allocator, manifest, activation, capacity);
    const arena = new Arena(allocator, manifest.plan, uniforms, capacity);
    const readback = (role: OutputRole): Readback => {
      const result = memory.buffers.get(manifest.plan.outputs[role] ?? "");
      if (result === undefined) throw new BundleError(`manifest.json: plan.outputs.${role} names no buffer; compile the bundle again`, { output: role });
      return new Readback(allocator, result);
    };
    const readbacks = { logits: readback("logits"), next_token_ids: readback("next_token_ids") };
    await requireMemory(device, allocator.bytes);

    let compiled = 0;
    options.onKernel?.(compiled, names.length);
    const [{ kernels, refused }] = await Promise.all([
      compileKernels(device, manifest, names, source, signal, () => {
        compiled++;
        options.onKernel?.(compiled, names.length);
      }),
      loadWeights(device, weights, manifest, source, signal, options.onBytes),
    ]);

    const find = (name: string, plane: string | null): GPUBindingResource | undefined => {
      // A vector has one plane, "w", which kernels need not name.
      const buffer = memory.buffers.get(name) ?? weights.get(planeKey(name, plane ?? "w"));
      return buffer === undefined ? arena.input(name) : { buffer };
    };
    const rows = rowsWithout(wanted, refused);
    const refusedVariants = [...new Set([...wanted].flatMap(([list, all]) => all.filter((row) => !rows.get(list)?.includes(row)).map(variantName)))];
    const schedule = new Schedule(device, manifest, rows, kernels, find, (kernel) => arena.uniform(kernel));
    schedule.choose(choices);
    const sizes = { kernels: names.length, weightBytes, stateBytes: memory.stateBytes };
    return new Runner(manifest, rows, refusedVariants, open, allocator, arena, schedule, readbacks, capacity, sizes);
  }

  /** The device's pages, each of ``manifest.page_size`` tokens. */
  get numPages(): number {
    return this.capacity.P ?? 0;
  }

  /** The likeliest token after each sampled row, (R,). Without sampled rows it waits until the device is done. */
  async forward(batch: Batch): Promise<Int32Array> {
    const bytes = await this.run(batch, "next_token_ids", 1);
    return new Int32Array(bytes);
  }

  /** The logits after each sampled row, (R, V) row by row. */
  async forwardLogits(batch: Batch): Promise<Float32Array> {
    const bytes = await this.run(batch, "logits", this.manifest.spec.vocab_size);
    return new Float32Array(bytes);
  }

  /** From the next batch on, run by these choices among `rows`. */
  choose(choices: Choices): void {
    this.schedule.choose(choices);
  }

  /**
   * For tuning: the time in ms of ``count`` steps of a list, one after the other, all by one variant, as ``batch`` would run them. What they compute is
   * overwritten by the next forward, but for the batch's keys and values. One call at a time.
   */
  async time(batch: Batch, list: string, variant: string, count: number): Promise<number> {
    this.requireHealth();
    const dims = dimsOf(batch, this.numPages);
    this.requireFit(dims);
    const steps = this.schedule.variantDispatches(list, variant, dims);
    const dispatches = Array.from({ length: count }, (_, index) => steps[index % steps.length] ?? []).flat();
    this.#stopwatch ??= new Stopwatch(this.allocator);
    this.put(batch, dispatches, dims);
    try {
      return await this.#stopwatch.time((pass) => {
        encodeDispatches(pass, dispatches);
      });
    } catch (error) {
      throw this.#problem ?? new DeviceError(`The WebGPU device failed (${messageOf(error)}); load the model again`, {}, { cause: error });
    }
  }

  /** Free the device and all its memory. */
  destroy(): void {
    this.allocator.destroy();
    this.open.device.destroy();
  }

  private async run(batch: Batch, output: OutputRole, columns: number): Promise<ArrayBuffer> {
    this.requireHealth();
    const dims = dimsOf(batch, this.numPages);
    this.requireFit(dims);
    const { device } = this.open;
    const size = batch.sample_rows.length * columns * 4;
    const readback = this.readbacks[output];
    const encoder = device.createCommandEncoder();
    this.encode(encoder, batch, dims);
    if (size > 0) readback.copy(encoder, size);
    device.queue.submit([encoder.finish()]);
    const bytes = await this.result(readback, size);
    this.requireHealth();
    return bytes;
  }

  private async result(readback: Readback, size: number): Promise<ArrayBuffer> {
    try {
      if (size > 0) return await readback.read(size);
      await this.open.device.queue.onSubmittedWorkDone();
      return new ArrayBuffer(0);
    } catch (error) {
      throw this.#problem ?? new DeviceError(`The WebGPU device failed (${messageOf(error)}); load the model again`, {}, { cause: error });
    }
  }

  private encode(encoder: GPUCommandEncoder, batch: Batch, dims: Dims): void {
    const dispatches = this.schedule.dispatches(dims);
    this.put(batch, dispatches, dims);
    const pass = encoder.beginComputePass();
    encodeDispatches(pass, dispatches);
    pass.end();
  }

  /** Send a batch, and its sizes for the kernels that will run it. */
  private put(batch: Batch, dispatches: readonly Dispatch[], dims: Dims): void {
    this.arena.putInputs(batch);
    for (const kernel of new Set(dispatches.map((dispatch) => dispatch.kernel))) this.arena.putUniforms(kernel.name, kernel.entry.uniforms, dims);
    this.arena.write();
  }

  private requireHealth(): void {
    if (this.#problem !== null) throw this.#problem;
  }

  private requireFit(dims: Dims): void {
    for (const [dim, most] of Object.entries(this.capacity)) {
      const size = dims[dim] ?? 0;
      if (size > most) throw new RequestError(`batch: ${dim} is ${size}, this runner takes at most ${most}; split the batch`, { dim, found: size, most });
    }
  }
}

function encodeDispatches(pass: GPUComputePassEncoder, dispatches: readonly Dispatch[]): void {
  let current: CompiledKernel | null = null;
  for (const { kernel, bindGroup, workgroups } of dispatches) {
    if (kernel !== current) pass.setPipeline(kernel.pipeline);
    current = kernel;
    pass.setBindGroup(0, bindGroup);
    pass.dispatchWorkgroups(...workgroups);
  }
}

async function requireMemory(device: GPUDevice, size: number): Promise<void> {
  const error = await device.popErrorScope();
  if (error !== null) {
    throw new DeviceError(`The device has no room for the model's ${Math.ceil(size / 2 ** 20)} MiB (${error.message}); use a smaller model or context`, {
      bytes: size,
    });
  }
}
