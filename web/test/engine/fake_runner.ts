// A runner whose pages hold token ids: it reads a sequence through its page table, as attention does, and computes the
// next token with the fake model.

import type { StepRunner } from "../../src/engine/step_runner.js";
import { DeviceError } from "../../src/errors.js";
import type { Batch } from "../../src/runtime/batch.js";
import { SAMPLE_FLAGS } from "../../src/runtime/batch.js";
import type { RunnerLimits, StepResult, ResultOptions } from "../../src/runtime/runner.js";
import { VOCAB, logprobsOf, nextToken } from "./fake_model.js";

export class FakeRunner implements StepRunner {
  readonly stepsInFlight = 8;
  readonly batches: Batch[] = [];
  readonly calls: string[] = [];
  readonly counts = new Map<number, Int32Array>();
  readonly biases = new Map<number, Float32Array>();
  readonly #masks = new Map<number, Int32Array>();
  readonly #cells: Int32Array;
  readonly #sampled: Int32Array;
  #lost = false;
  /** Resolves when the logits of a batch are on the host. */
  #processing = false;

  constructor(
    readonly limits: RunnerLimits,
    private readonly loseAfter = Infinity,
    readonly samplesAnyRow = true,
  ) {
    this.#cells = new Int32Array(limits.pages * limits.pageSize).fill(-1);
    this.#sampled = new Int32Array(limits.sequences).fill(-1);
  }

  async submit(
    batch: Batch,
    { logprobs = false, alternatives = false, onLogits }: ResultOptions = {},
  ): Promise<StepResult> {
    if (this.#processing) throw new Error("a batch was submitted between the two parts of another");
    this.batches.push(batch);
    if (onLogits !== undefined) {
      this.#processing = true;
      await Promise.resolve();
      this.#processing = false;
    }
    if (this.batches.length > this.loseAfter) this.#lost = true;
    const { tokenIds, rows } = this.compute(batch, onLogits);
    await Promise.resolve();
    if (this.#lost) throw new DeviceError("the fake device is lost");
    const ranked = rows
      .map((row) => row.map((logprob, id) => ({ id, logprob })).sort((a, b) => b.logprob - a.logprob))
      .flat();
    return {
      tokenIds,
      logprobs: logprobs ? Float32Array.from(tokenIds, (id, row) => rows[row]?.[id] ?? NaN) : null,
      alternatives: alternatives
        ? {
            ids: Int32Array.from(ranked, ({ id }) => id),
            logprobs: Float32Array.from(ranked, ({ logprob }) => logprob),
          }
        : null,
    };
  }

  setTokenCounts(slot: number, counts: Int32Array<ArrayBuffer> | null): void {
    this.counts.set(slot, counts ?? new Int32Array(VOCAB));
  }

  setLogitBias(slot: number, bias: Float32Array<ArrayBuffer>): void {
    this.biases.set(slot, bias);
  }

  setTokenMask(slot: number, mask: Int32Array<ArrayBuffer>): void {
    this.#masks.set(slot, mask.slice());
  }

  copyPages(pairs: readonly (readonly [from: number, to: number])[]): void {
    const { pageSize } = this.limits;
    for (const [from, to] of pairs) this.#cells.copyWithin(to * pageSize, from * pageSize, (from + 1) * pageSize);
    this.calls.push(...pairs.map(([from, to]) => `copy ${from} ${to}`));
  }

  readPages(pages: readonly number[]): Promise<Uint8Array<ArrayBuffer>> {
    const { pageSize } = this.limits;
    const cells = Int32Array.from(
      pages.flatMap((page) => [...this.#cells.subarray(page * pageSize, (page + 1) * pageSize)]),
    );
    return Promise.resolve(new Uint8Array(cells.buffer));
  }

  writePages(pages: readonly number[], bytes: Uint8Array<ArrayBuffer>): void {
    const { pageSize } = this.limits;
    const cells = new Int32Array(bytes.buffer);
    pages.forEach((page, index) => {
      this.#cells.set(cells.subarray(index * pageSize, (index + 1) * pageSize), page * pageSize);
    });
  }

  /** For each sampled row, the token and the log-probabilities (V,) of all tokens. */
  private compute(
    batch: Batch,
    onLogits: ResultOptions["onLogits"],
  ): { readonly tokenIds: Int32Array<ArrayBuffer>; readonly rows: readonly (readonly number[])[] } {
    const ids = batch.token_ids.map((id) => (id < 0 ? (this.#sampled[-1 - id] ?? -1) : id));
    batch.slots.forEach((slot, row) => {
      this.#cells[slot] = ids[row] ?? -1;
    });
    const rows: (readonly number[])[] = [];
    const sampled = batch.sample_rows.map((row, sample) => {
      const sequence = batch.seq_starts.filter((start) => start <= row).length - 1;
      const pages = batch.page_ids.slice(batch.page_indptr[sequence], batch.page_indptr[sequence + 1]);
      const { pageSize } = this.limits;
      const tokens = Array.from({ length: (batch.positions[row] ?? 0) + 1 }, (_, position) => {
        return this.#cells[(pages[Math.floor(position / pageSize)] ?? 0) * pageSize + (position % pageSize)] ?? -1;
      });
      rows.push(logprobsOf(tokens));
      const slot = batch.sample_slots[2 * sample] ?? -1;
      const masked = ((batch.sample_slots[2 * sample + 1] ?? 0) & SAMPLE_FLAGS.mask) !== 0;
      const logits = Float32Array.from(logprobsOf(tokens));
      onLogits?.(logits, sample);
      const likeliest = onLogits === undefined ? nextToken(tokens) : logits.indexOf(Math.max(...logits));
      const token = allowed(likeliest, masked ? this.#masks.get(slot) : undefined);
      // With a temperature, the token depends on the draw.
      const settings = batch.sample_settings.slice(sample * 8, sample * 8 + 8);
      const chosen = settings[0] === 0 ? token : (token + Math.floor((settings[4] ?? 0) * VOCAB)) % VOCAB;
      if (slot >= 0) this.#sampled[slot] = chosen;
      return chosen;
    });
    return { tokenIds: Int32Array.from(sampled), rows };
  }
}

/** The token, or the next one that the mask allows. */
function allowed(token: number, mask: Int32Array | undefined): number {
  if (mask === undefined) return token;
  for (let step = 0; step < VOCAB; step++) {
    const id = (token + step) % VOCAB;
    if ((((mask[id >> 5] ?? 0) >> (id & 31)) & 1) === 1) return id;
  }
  throw new Error("nothing is allowed");
}
