// The runner: executes a bundle's plan on one device. It computes next tokens, logits or embeddings for batches; keys
// and values stay in pages on the device.
//
// Each batch is submitted immediately, and may read the tokens of earlier batches on the device.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { ExpertCounts } from "../experts/index.js";
import { unlessAborted } from "./abort.js";
import { Allocator } from "./allocator.js";
import type { Batch, PatchBatch } from "./batch.js";
import { dimsOf } from "./batch.js";
import type { Bundle } from "./bundle.js";
import type { Choices } from "./choices.js";
import type { OpenDevice } from "./device.js";
import { Health } from "./device.js";
import type { Dims } from "./expr.js";
import type { Send } from "./host_tables.js";
import { batchInputs, gather } from "./host_tables.js";
import type { Manifest, VariantEntry } from "./manifest.js";
import type { RoomBuffers, RunnerLimits } from "./memory.js";
import type { PageCopies, PagesByGroup } from "./page_groups.js";
import type { Result, ResultOptions, StepResult } from "./results.js";
import type { RunnerInfo, RunnerOptions, RunnerParts } from "./runner_parts.js";
import { leastChunk, prepareParts, requireMemory } from "./runner_parts.js";
import type { Dispatch, Schedule } from "./schedule.js";
import { encodeDispatches, encodePass } from "./schedule.js";
import type { Piece } from "./staging.js";
import { Staging } from "./staging.js";
import { Stopwatch } from "./stopwatch.js";

/** The number of steps that can be in flight before another buffer must be created. */
const STEPS_IN_FLIGHT = 8;

export class Runner {
  readonly manifest: Manifest;
  readonly limits: RunnerLimits;
  /** By list, the variants that are prepared. */
  readonly rows: ReadonlyMap<string, readonly VariantEntry[]>;
  /** Variants with a kernel that the device refuses. */
  readonly refused: readonly string[];
  readonly stepsInFlight: number;
  readonly samplesAnyRow = true;
  /** Resolves when the device is lost, also by `destroy`. */
  readonly lost: Promise<DeviceError>;
  /** The number of new tokens in a step that suits this device, as far as it is known: at most ``limits.tokens``. */
  chunk: number;
  readonly #parts: RunnerParts;
  readonly #steps: Staging;
  readonly #logits: Staging;
  readonly #health: Health;
  #features: Staging | null = null;
  #heard: Staging | null = null;
  #stopwatch: Stopwatch | null = null;

  private constructor(parts: RunnerParts) {
    const { allocator, files, limits, open, results } = parts;
    this.#parts = parts;
    this.manifest = parts.manifest;
    this.limits = limits;
    this.chunk = leastChunk(limits);
    this.rows = parts.rows;
    this.refused = parts.refused;
    // The host must know the tokens of a step to gather their rows, and the experts that they choose.
    this.stepsInFlight = files.size > 0 ? 1 : STEPS_IN_FLIGHT;
    const [numLogits, numOthers] = results.sizes(limits.rows ?? limits.sequences, limits.tokens);
    this.#steps = new Staging(allocator, "step", numOthers * 4, STEPS_IN_FLIGHT);
    this.#logits = new Staging(allocator, "logits", numLogits * 4);
    this.#health = new Health(open.device);
    this.lost = this.#health.lost;
  }

  /**
   * Download, check and upload the weights while all kernels compile. The runner owns the device from now on: `destroy`
   * frees it, and so does a failure of `create`. Throws BundleError, DeviceError, or the signal's reason.
   */
  static async create(bundle: Bundle, open: OpenDevice, options: RunnerOptions = {}): Promise<Runner> {
    const allocator = new Allocator(open.device);
    const failed = new AbortController();
    const signal = options.signal === undefined ? failed.signal : AbortSignal.any([options.signal, failed.signal]);
    try {
      // The compilation of pipelines cannot be cancelled, but their device can be destroyed.
      const parts = await unlessAborted(prepareParts(bundle, open, allocator, signal, options), signal);
      const runner = new Runner(parts);
      // The device had the memory for the recorded chunk when it was measured, but other pages may use it now.
      const chunk = Math.min(runner.limits.tokens, options.chunk ?? 0);
      if (chunk > runner.chunk && (await unlessAborted(runner.resize(chunk), signal))) runner.chunk = chunk;
      return runner;
    } catch (error) {
      // Stop the downloads that are still running.
      failed.abort(error);
      allocator.destroy();
      open.device.destroy();
      throw error;
    }
  }

  /** Of experts that batches needed; null if all are on the device. */
  get expertCounts(): ExpertCounts | null {
    return this.#parts.experts?.counts ?? null;
  }

  /** Whether a step may sample more rows than one for each sequence; not if each row reads experts from their files. */
  get mayDraft(): boolean {
    const { experts, limits } = this.#parts;
    return experts === null && (limits.rows ?? 0) > limits.sequences;
  }

  /** The sizes at present. */
  get info(): RunnerInfo {
    return { ...this.#parts.info, totalBytes: this.#parts.allocator.bytes };
  }

  /**
   * Compute the next token of each sampled row. The batch is submitted before this returns, and more batches may be
   * submitted before the promise resolves, for example batches that continue from the tokens of this one. Results
   * arrive in order. If ``stepsInFlight`` is 1, wait for each batch before the next call instead. Without sampled rows
   * the promise resolves when the device is done.
   */
  async submit(batch: Batch, options: ResultOptions = {}): Promise<StepResult> {
    const { alternatives = false, onLogits } = options;
    const heads = options.heads ? this.#parts.heads : null;
    const requested = this.#parts.results.ofStep(options);
    const rows = batch.sample_rows.length;
    let start = 0;
    if (onLogits) {
      start = this.#parts.schedule.sample;
      const result = this.#parts.results.logits;
      const logits = new Float32Array(await this.#run(batch, alternatives, this.#logits, [result], 0, start));
      for (let row = 0; row < rows; row++)
        onLogits(logits.subarray(row * result.columns, (row + 1) * result.columns), row);
      this.#parts.open.device.queue.writeBuffer(this.#buffer(result), 0, logits);
    }
    const bytes = await this.#run(batch, alternatives, this.#steps, requested, start, undefined, heads);
    return this.#parts.results.readStep(bytes, rows, options);
  }

  /**
   * The logits after each sampled row, (R, V) row by row. Tokens are sampled too, but a row with slot -1 does not store
   * them.
   */
  async forwardLogits(batch: Batch): Promise<Float32Array> {
    return new Float32Array(await this.#run(batch, false, this.#logits, [this.#parts.results.logits]));
  }

  /**
   * The results of a model that makes vectors or scores, row by row: the embeddings of the sampled rows (R, E), the
   * scores of the labels of each text (B, L), or of each token (S, L). Batches overlap as in `submit`. A plan without
   * pages needs batches of complete texts, each with a sampled row.
   */
  async encode(batch: Batch): Promise<Float32Array> {
    return new Float32Array(await this.#run(batch, false, this.#steps, [this.#parts.results.encoded]));
  }

  /**
   * The features (F, E) of the patches of one tile of a picture. The batches that read them may be submitted when they
   * are there. A batch of frames: those (S, E) of a sound. Throws RequestError for more patches than a tile of this model
   * has.
   */
  async features(batch: PatchBatch | Batch): Promise<Float32Array<ArrayBuffer>> {
    if (!("patches" in batch)) return this.#hear(batch);
    const { allocator, capacity, open, results, vision } = this.#parts;
    const { features: result } = results;
    if (vision === null || result === null) throw new RequestError(`${this.manifest.model} sees no pictures`);
    this.#health.require();
    const V = batch.patch_starts.at(-1) ?? 0;
    const F = V / (this.manifest.images?.block ?? 1) ** 2;
    const none = Object.fromEntries(Object.keys(capacity).map((dim) => [dim, 0]));
    const dims = { ...none, V, I: batch.patch_starts.length - 1, F, C: batch.change_rows?.length ?? 0 };
    this.#requireFit(dims);
    this.#features ??= new Staging(allocator, "features", (capacity.F ?? 0) * result.columns * 4);
    const encoder = open.device.createCommandEncoder();
    const dispatches = vision.dispatches(dims);
    this.#put(batch, dispatches, dims, vision);
    encodePass(encoder, dispatches);
    const read = this.#features.copy(encoder, [{ source: this.#buffer(result), size: F * result.columns * 4 }]);
    open.device.queue.submit([encoder.finish()]);
    return new Float32Array(await this.#health.result(read()));
  }

  async #hear(batch: Batch): Promise<Float32Array<ArrayBuffer>> {
    const { allocator, capacity, hearing, results } = this.#parts;
    const { heard } = results;
    if (hearing === null || heard === null) throw new RequestError(`${this.manifest.model} does not hear`);
    this.#heard ??= new Staging(allocator, "heard", (capacity.S ?? 0) * heard.columns * 4);
    return new Float32Array(await this.#run(batch, false, this.#heard, [heard], 0, undefined, hearing));
  }

  /**
   * Compute the keys and values of a window of sound, to which the sequences of later batches attend. Throws RequestError
   * if the model reads none. ``end``: without the plan's steps from this one on, to measure the others.
   */
  async listen(batch: Batch, end?: number): Promise<void> {
    const { audio } = this.#parts;
    if (audio === null) throw new RequestError(`${this.manifest.model} reads no sound`);
    await this.#run(batch, false, this.#steps, [], 0, end, audio);
  }

  // The methods below are ordered with `submit`: their changes affect only the batches that are submitted later.

  /**
   * Set the occurrences of each token in the answer of a slot, (V,), with `IN_PROMPT` added for tokens in the prompt;
   * null for zeros.
   */
  setTokenCounts(slot: number, counts: Int32Array<ArrayBuffer> | null): void {
    this.#parts.slotStates.set("token_counts", slot, counts);
  }

  /** Set the values that are added to the logits of a slot, (V,). */
  setLogitBias(slot: number, bias: Float32Array<ArrayBuffer>): void {
    this.#parts.slotStates.set("logit_bias", slot, bias);
  }

  /** Set a bit for each token that a slot may sample, (ceil(V / 32),), least significant bit first. */
  setTokenMask(slot: number, mask: Int32Array<ArrayBuffer>): void {
    this.#parts.slotStates.set("token_mask", slot, mask);
  }

  /** Set the values of a state in a slot for LoRA adapters. */
  writeState(name: string, slot: number, values: Float32Array<ArrayBuffer>): void {
    this.#parts.slotStates.set(name, slot, values);
  }

  /** Copy complete pages of each group on the device, one pair after the other. */
  copyPages(pairs: PageCopies): void {
    this.#parts.pages.copy(pairs);
  }

  /**
   * The keys and values of complete pages. `writePages` accepts them on any runner of the same bundle and activation
   * dtype.
   */
  async readPages(pages: PagesByGroup): Promise<Uint8Array<ArrayBuffer>> {
    this.#health.require();
    return this.#health.result(this.#parts.pages.read(pages));
  }

  writePages(pages: PagesByGroup, bytes: Uint8Array<ArrayBuffer>): void {
    this.#parts.pages.write(pages, bytes);
  }

  /** From the next batch on, select among `rows` by these choices. */
  choose(choices: Choices): void {
    const { schedule, heads, vision, hearing, audio } = this.#parts;
    for (const each of [schedule, heads, vision, hearing, audio]) each?.choose(choices);
  }

  /**
   * For tuning: the time in ms of ``count`` steps of a list, one after the other, all by one variant, with the sizes of
   * ``batch``. The next forward overwrites their results, except the batch's keys and values. Only one call at a time.
   */
  async time(batch: Batch, list: string, variant: string, count: number): Promise<number> {
    const dims = this.#accept(batch, false);
    const steps = this.#parts.schedule.variantDispatches(list, variant, dims);
    const dispatches = Array.from({ length: count }, (_, index) => steps[index % steps.length] ?? []).flat();
    this.#stopwatch ??= new Stopwatch(this.#parts.allocator);
    this.#put(batch, dispatches, dims, this.#parts.schedule);
    const time = this.#stopwatch.time((pass) => {
      encodeDispatches(pass, dispatches);
    });
    return this.#health.result(time);
  }

  /** Free the device and all its memory. */
  destroy(): void {
    this.#parts.allocator.destroy();
    this.#parts.open.device.destroy();
  }

  /** Run a batch and return the sampled rows of these results, one result after the other. */
  async #run(
    batch: Batch,
    alternatives: boolean,
    staging: Staging,
    results: readonly Result[],
    start?: number,
    end?: number,
    plan: Schedule | null = null,
  ): Promise<ArrayBuffer> {
    const dims = this.#accept(batch, alternatives);
    const { buffers, experts, files, open } = this.#parts;
    const { device } = open;
    const schedule = plan ?? this.#parts.schedule;
    // Without files, the batch is submitted before this returns.
    let send: Send | null = null;
    if (files.size > 0) send = await gather(this.manifest, schedule.plan, files, batch.token_ids);
    send?.(device.queue, buffers);
    const rows = batch.sample_rows.length;
    const encoder = device.createCommandEncoder();
    const dispatches = schedule.dispatches(dims, start, end);
    this.#put(batch, dispatches, dims, schedule);
    if (experts === null || plan !== null) encodePass(encoder, dispatches);
    else await this.#health.result(experts.run(schedule, dims, start, end));
    const pieces = results.map((result): Piece => ({
      source: this.#buffer(result),
      size: (result.perToken ? (dims.S ?? 0) : rows) * result.columns * 4,
    }));
    const read = pieces.some(({ size }) => size > 0) ? staging.copy(encoder, pieces) : null;
    device.queue.submit([encoder.finish()]);
    return this.#health.result(
      read === null ? device.queue.onSubmittedWorkDone().then(() => new ArrayBuffer(0)) : read(),
    );
  }

  /** Send a batch, and its sizes for the kernels that run it. */
  #put(batch: Batch | PatchBatch, dispatches: readonly Dispatch[], dims: Dims, { plan }: Schedule): void {
    const { arena } = this.#parts;
    arena.putInputs(batch, dims, batchInputs(plan));
    for (const kernel of new Set(dispatches.map((dispatch) => dispatch.kernel)))
      arena.putUniforms(kernel.name, kernel.entry.uniforms, dims);
    arena.write();
  }

  #buffer({ name }: Result): GPUBuffer {
    const buffer = this.#parts.buffers.get(name);
    if (buffer === undefined) throw new Error(`buffer ${name} is not allocated`);
    return buffer;
  }

  /** The dims of a batch, for which there is room now. Throws if the device has failed or the batch is too large. */
  #accept(batch: Batch, alternatives: boolean): Dims {
    this.#health.require();
    const dims = dimsOf(batch, this.#parts.capacity, alternatives);
    this.#requireFit(dims);
    this.#requireSlots(batch);
    this.#makeRoom(dims);
    return dims;
  }

  /**
   * Have buffers for batches of ``tokens`` and no more. False if the device lacks the memory; then it keeps those that it
   * has. Throws DeviceError if the device has failed.
   */
  async resize(tokens: number): Promise<boolean> {
    const { open, room } = this.#parts;
    open.device.pushErrorScope("out-of-memory");
    const buffers = room.allocate(tokens);
    const fits = (await this.#health.result(open.device.popErrorScope())) === null;
    if (fits) this.#use(buffers);
    else room.free(buffers);
    return fits;
  }

  /**
   * Let the plan's buffers grow for a batch, to the next power of two of tokens. If the device lacks memory, the batch's
   * result is the error.
   */
  #makeRoom({ S = 0 }: Dims): void {
    const { allocator, open, room } = this.#parts;
    if (room.suffices(S)) return;
    open.device.pushErrorScope("out-of-memory");
    this.#use(room.allocate(2 ** Math.ceil(Math.log2(S))));
    requireMemory(open.device, allocator.bytes).catch((error: unknown) => {
      this.#health.fail(error instanceof DeviceError ? error : new DeviceError(messageOf(error)));
    });
  }

  #use(buffers: RoomBuffers): void {
    const { room, schedule, heads, vision, hearing, audio } = this.#parts;
    room.use(buffers);
    for (const each of [schedule, heads, vision, hearing, audio]) each?.bind();
  }

  #requireFit(dims: Dims): void {
    for (const [dim, most] of Object.entries(this.#parts.capacity)) {
      const size = dims[dim] ?? 0;
      if (size > most)
        throw new RequestError(`batch: ${dim} is ${size}, this runner accepts at most ${most}; split the batch`, {
          dim,
          found: size,
          most,
        });
    }
  }

  #requireSlots(batch: Batch): void {
    const slots = this.limits.sequences;
    for (let row = 0; row < batch.sample_rows.length; row++) {
      const [slot = -1, flags = 0] = batch.sample_slots.slice(2 * row, 2 * row + 2);
      // A row without a slot has no states.
      if (slot >= slots || slot < (flags === 0 ? -1 : 0)) {
        throw new RequestError(`batch: slot ${slot} is not one of 0 to ${slots - 1}; give each sequence one of them`, {
          slot,
          slots,
        });
      }
    }
  }
}
