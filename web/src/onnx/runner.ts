// The runner of ONNX bundles: computes the next tokens of batches. It holds the pages of keys and values, and samples
// the tokens.
//
// A page holds one sequence. The sequences of a batch run one after the other, because each has its own arrays of keys
// and values, and joining them for one run would copy all of them at every step.

import { DeviceError, NearfarError, RequestError, messageOf } from "../errors.js";
import type { Batch } from "../runtime/batch.js";
import type { ExportManifest } from "../runtime/manifest.js";
import type { MemoryPlan } from "../runtime/memory_plan.js";
import type { PageCopies, PagesByGroup } from "../runtime/page_groups.js";
import type { RunnerLimits } from "../runtime/memory.js";
import type { ResultOptions, StepResult } from "../runtime/results.js";
import type { StepRunner } from "../engine/step_runner.js";
import { HostSampler } from "./host_sampler.js";
import { newRowsName } from "./new_rows.js";
import type { OnnxRuntime, OnnxSession, OnnxTensor } from "./options.js";
import type { Plane } from "./sequence_pages.js";
import { SequencePages } from "./sequence_pages.js";

/**
 * The origin of new keys and values. "rows": outputs of `withNewRows`, for runtimes that copy outputs, such as those of
 * Node and browsers. "in-place": past and present are the same memory, for runtimes that write directly into the output
 * tensors, such as that of React Native.
 */
export type KeyValueMode = "rows" | "in-place";

/** The maximum number of new tokens in one run; a longer prompt takes several runs. */
const PREFILL_CHUNK = 128;

export class OnnxRunner implements StepRunner {
  readonly limits: RunnerLimits;
  readonly stepsInFlight = 1;
  readonly samplesAnyRow = false;
  readonly #planes: readonly Plane[];
  readonly #pages: SequencePages;
  readonly #sampler: HostSampler;
  readonly #mask: BigInt64Array;
  /** The last task; all tasks run in order. */
  #last: Promise<unknown> = Promise.resolve();
  #closed: DeviceError | null = null;
  /** The failure of a task without a promise; the next step throws it. */
  #failure: Error | null = null;

  constructor(
    private readonly ort: OnnxRuntime,
    private readonly session: OnnxSession,
    private readonly manifest: ExportManifest,
    { pages, context }: MemoryPlan,
    maxSequences: number,
    private readonly mode: KeyValueMode,
  ) {
    const { spec, activation } = manifest;
    const { vocab_size: vocabSize, num_kv_heads: heads, head_dim: headDim } = spec;
    this.limits = {
      tokens: Math.max(PREFILL_CHUNK, maxSequences),
      sequences: maxSequences,
      groups: [{ pages, window: Infinity }],
      pageSize: context,
      context,
      vocabSize,
    };
    this.#planes = planesOf(manifest);
    const dtype = activation === "float32" ? "float32" : "float16";
    this.#pages = new SequencePages(ort, this.#planes, { heads, headDim, dtype, context }, pages);
    this.#sampler = new HostSampler(vocabSize, maxSequences);
    this.#mask = new BigInt64Array(context).fill(1n);
  }

  /** See `Runner.submit`. Only the last row of each sequence can be sampled. */
  submit(batch: Batch, requested: ResultOptions = {}): Promise<StepResult> {
    return this.#inOrder(async () => {
      const failure = this.#failure;
      this.#failure = null;
      if (failure !== null) throw failure;
      const logits: Float32Array[] = [];
      for (let sequence = 0; sequence + 1 < batch.seq_starts.length; sequence++) {
        const row = await this.#forward(batch, sequence);
        if (row !== null) logits.push(row);
      }
      if (logits.length !== batch.sample_rows.length)
        throw new RequestError("batch: a sampled row is not the last of its sequence; split the batch there");
      const result = this.#sampler.choose(batch, logits, requested);
      if (result.tokenIds.some((id) => id < 0))
        throw new DeviceError("ONNX Runtime computed logits that are not numbers; load the model again, or report it");
      return result;
    });
  }

  setTokenCounts(slot: number, counts: Int32Array<ArrayBuffer> | null): void {
    const own = counts?.slice() ?? new Int32Array(this.limits.vocabSize);
    this.#change(() => {
      this.#sampler.set(slot, "counts", own);
    });
  }

  setLogitBias(slot: number, bias: Float32Array<ArrayBuffer>): void {
    const own = bias.slice();
    this.#change(() => {
      this.#sampler.set(slot, "bias", own);
    });
  }

  setTokenMask(slot: number, mask: Int32Array<ArrayBuffer>): void {
    const own = mask.slice();
    this.#change(() => {
      this.#sampler.set(slot, "mask", own);
    });
  }

  copyPages([pairs = []]: PageCopies): void {
    this.#change(() => {
      for (const [from, to] of pairs) this.#pages.copy(from, to);
    });
  }

  readPages([pages = []]: PagesByGroup): Promise<Uint8Array<ArrayBuffer>> {
    return this.#inOrder(() => this.#pages.read(pages));
  }

  writePages([pages = []]: PagesByGroup, bytes: Uint8Array<ArrayBuffer>): void {
    this.#change(this.#pages.write(pages, bytes));
  }

  encode(): Promise<Float32Array> {
    return Promise.reject(new RequestError(`${this.manifest.model} has no output embeddings; it generates text`));
  }

  /** Free the session and all keys and values when the running step is done. Later calls fail with ``reason``. */
  async close(reason: DeviceError): Promise<void> {
    if (this.#closed !== null) return;
    this.#closed = reason;
    await this.#last.catch(() => undefined);
    this.#pages.clear();
    await this.session.release();
  }

  /**
   * Run the new tokens of one sequence of a batch. Returns the logits (V,) after its last token, or null if they are
   * not sampled.
   */
  async #forward(batch: Batch, sequence: number): Promise<Float32Array | null> {
    const [first = 0, end = 0] = batch.seq_starts.slice(sequence, sequence + 2);
    const [page = -1] = batch.page_ids.slice(batch.page_indptr[sequence], batch.page_indptr[sequence + 1]);
    const start = batch.positions[first] ?? 0;
    const count = end - first;
    const total = start + count;
    if (count === 0 || total > this.limits.context) {
      throw new RequestError(
        `batch: sequence ${sequence} has ${count} new tokens after ${start}; a context holds ${this.limits.context}`,
        { sequence },
      );
    }
    this.#pages.reserve(page, start, total);
    const ids = BigInt64Array.from(batch.token_ids.slice(first, end), (id) => BigInt(this.#sampler.tokenId(id)));
    const results = await this.#run(
      {
        input_ids: new this.ort.Tensor("int64", ids, [1, count]),
        attention_mask: new this.ort.Tensor("int64", this.#mask.subarray(0, total), [1, total]),
        ...this.#pages.pasts(page),
      },
      page,
    );
    if (this.mode === "rows")
      this.#pages.append(page, start, count, ({ present }) => outputOf(results, newRowsName(present)));
    this.#pages.setFilled(page, total);
    return batch.sample_rows.includes(end - 1) ? (outputOf(results, "logits").data as Float32Array) : null;
  }

  async #run(feeds: Record<string, OnnxTensor>, page: number): Promise<Readonly<Record<string, OnnxTensor>>> {
    const fetches =
      this.mode === "in-place"
        ? { logits: null, ...this.#pages.presents(page) }
        : ["logits", ...this.#planes.map(({ present }) => newRowsName(present))];
    try {
      return await this.session.run(feeds, fetches);
    } catch (error) {
      throw new DeviceError(
        `ONNX Runtime failed at a step (${messageOf(error)}); load the model again`,
        {},
        { cause: error },
      );
    }
  }

  #change(task: () => void): void {
    this.#inOrder(task).catch((error: unknown) => {
      this.#failure ??= error as Error;
    });
  }

  /** Run a task after all earlier ones. If an earlier step failed, this task fails too. */
  #inOrder<T>(task: () => T | Promise<T>): Promise<T> {
    const turn = this.#last.then(() => {
      if (this.#closed !== null) throw this.#closed;
      return task();
    });
    this.#last = turn.catch((error: unknown) => {
      // A wrong request has changed nothing.
      if (!(error instanceof NearfarError) || error instanceof DeviceError) throw error;
    });
    this.#last.catch(() => undefined);
    return turn;
  }
}

/** The keys and the values of every layer. */
export function planesOf({ spec }: ExportManifest): readonly Plane[] {
  return Array.from({ length: spec.num_layers }, (_, layer) =>
    ["key", "value"].map((kind) => ({ past: `past_key_values.${layer}.${kind}`, present: `present.${layer}.${kind}` })),
  ).flat();
}

function outputOf(results: Readonly<Record<string, OnnxTensor>>, name: string): OnnxTensor {
  const tensor = results[name];
  if (tensor === undefined)
    throw new DeviceError(`ONNX Runtime returned no output '${name}'; compile the bundle again`, { output: name });
  return tensor;
}
