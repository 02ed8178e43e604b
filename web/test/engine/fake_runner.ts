// A runner whose pages hold token ids: it reads a sequence through its page tables, as attention does, and computes the
// next token with the fake model. In a group with a window it reads only the tokens within the window. As on a device,
// the counts of a slot include every token that was sampled into it. Counts, biases, masks and random numbers change the
// next token, so that wrong settings of a slot cause a wrong answer.
//
// Its heads read the hash after a token and the token that follows, from which they know the next one.

import type { StepRunner } from "../../src/engine/step_runner.js";
import { DeviceError, RequestError } from "../../src/errors.js";
import type { Batch, PatchBatch } from "../../src/runtime/batch.js";
import { SAMPLE_FLAGS } from "../../src/runtime/batch.js";
import type { PageCopies, PagesByGroup } from "../../src/runtime/page_groups.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import type { ResultOptions, StepResult } from "../../src/runtime/results.js";
import { logprobsAfter, nextHash } from "./fake_model.js";

export class FakeRunner implements StepRunner {
  readonly stepsInFlight = 8;
  chunk: number;
  readonly batches: Batch[] = [];
  readonly calls: string[] = [];
  readonly tiles: PatchBatch[] = [];
  loseAfterTiles = Infinity;
  readonly counts = new Map<number, Int32Array>();
  readonly biases = new Map<number, Float32Array>();
  /** By slot, what an adapter adds to each token before it is hashed. */
  readonly adapters = new Map<number, number>();
  readonly #masks = new Map<number, Int32Array>();
  // By group, two values for each position: the token, and the hash of all tokens up to it.
  readonly #cells: readonly Int32Array[];
  readonly #sampled: Int32Array;
  // By slot of states, the hash of a sequence's tokens and their number.
  readonly #states: Int32Array;
  // Of the heads: the cells of their pages, and by slot the token sampled last and the hash before it.
  readonly #headCells: Int32Array;
  readonly #guessed: Int32Array;
  /** Whether an assistant guesses, which has no pages of its own, instead of heads. */
  hasAssistant = false;
  /** Whether about every fifth guess is wrong. */
  errs = false;
  #lost = false;
  /** Resolves when the logits of a batch are on the host. */
  #processing = false;

  constructor(
    readonly limits: RunnerLimits,
    private readonly loseAfter = Infinity,
    readonly samplesAnyRow = true,
  ) {
    this.chunk = limits.chunk ?? limits.tokens;
    this.#cells = limits.groups.map(({ pages }) => new Int32Array(2 * pages * limits.pageSize).fill(-1));
    this.#sampled = new Int32Array(limits.sequences).fill(-1);
    this.#states = new Int32Array(2 * (limits.states ?? 0)).fill(-1);
    this.#headCells = new Int32Array((limits.draftPages ?? 0) * limits.pageSize).fill(-1);
    this.#guessed = new Int32Array(2 * limits.sequences).fill(-1);
  }

  async submit(
    batch: Batch,
    { logprobs = false, alternatives = false, heads = false, onLogits }: ResultOptions = {},
  ): Promise<StepResult> {
    if (this.#processing) throw new Error("a batch was submitted between the two parts of another");
    this.batches.push(batch);
    if (heads) return { tokenIds: this.#guess(batch), logprobs: null, alternatives: null };
    if (onLogits !== undefined) {
      this.#processing = true;
      await Promise.resolve();
      this.#processing = false;
    }
    if (this.batches.length > this.loseAfter) this.#lost = true;
    const { tokenIds, rows } = this.compute(batch, onLogits, logprobs || alternatives);
    await Promise.resolve();
    if (this.#lost) throw new DeviceError("the fake device is lost");
    const ranked = (alternatives ? rows : [])
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

  /** The sum of each patch, once for each of its numbers. */
  async features(batch: PatchBatch): Promise<Float32Array<ArrayBuffer>> {
    this.tiles.push(batch);
    await Promise.resolve();
    if (this.tiles.length > this.loseAfterTiles) throw new DeviceError("the fake device is lost");
    const size = batch.patches.length / (batch.patch_starts.at(-1) ?? 1);
    return batch.patches.map((_, index) => {
      const first = index - (index % size);
      return batch.patches.subarray(first, first + size).reduce((sum, value) => sum + value, 0);
    });
  }

  setTokenCounts(slot: number, counts: Int32Array<ArrayBuffer> | null): void {
    this.counts.set(slot, counts?.slice() ?? new Int32Array(this.limits.vocabSize));
  }

  setLogitBias(slot: number, bias: Float32Array<ArrayBuffer>): void {
    this.biases.set(slot, bias);
  }

  setTokenMask(slot: number, mask: Int32Array<ArrayBuffer>): void {
    this.#masks.set(slot, mask.slice());
  }

  writeState(_: string, slot: number, values: Float32Array<ArrayBuffer>): void {
    this.adapters.set(slot, values[0] ?? 0);
  }

  copyPages(pairs: PageCopies): void {
    const { pageSize } = this.limits;
    pairs.forEach((some, group) => {
      for (const [from, to] of some) {
        this.#cells[group]?.copyWithin(2 * to * pageSize, 2 * from * pageSize, 2 * (from + 1) * pageSize);
        this.calls.push(`copy ${from} ${to}`);
      }
    });
  }

  readPages(pages: PagesByGroup): Promise<Uint8Array<ArrayBuffer>> {
    const cells = this.#units(pages).flatMap((unit) => [...unit]);
    return Promise.resolve(new Uint8Array(Int32Array.from(cells).buffer));
  }

  writePages(pages: PagesByGroup, bytes: Uint8Array<ArrayBuffer>): void {
    const cells = new Int32Array(bytes.buffer);
    const units = this.#units(pages);
    if (cells.length !== units.reduce((sum, { length }) => sum + length, 0))
      throw new RequestError("wrong number of bytes");
    let start = 0;
    for (const unit of units) unit.set(cells.subarray(start, (start += unit.length)));
  }

  /** The cells of pages, group by group, and those of slots of states. */
  #units(pages: PagesByGroup): readonly Int32Array[] {
    return pages.flatMap((some, group) => {
      const cells = this.#cells[group];
      const size = cells === undefined ? 2 : 2 * this.limits.pageSize;
      return some.map((unit) => (cells ?? this.#states).subarray(unit * size, (unit + 1) * size));
    });
  }

  /** Continue each sequence's state: all are read before any is written. */
  #foldStates(batch: Batch, hashes: readonly number[]): void {
    const { state_slots: pairs = [], positions, seq_starts: starts } = batch;
    const before = this.#states.slice();
    const rows =
      this.#states.length === 0 ? [] : starts.slice(1).map((end, index) => [starts[index] ?? 0, end] as const);
    if (pairs.length !== 2 * rows.length) throw new Error("the batch has no pair of slots for each sequence");
    rows.forEach(([row, end], index) => {
      const [read = -1, write = -1] = pairs.slice(2 * index);
      const position = positions[row] ?? 0;
      const expected = position === 0 ? [] : [this.#cell(batch, row, 0, position - 1)[1], position];
      if (expected.some((value, cell) => before[2 * read + cell] !== value))
        throw new Error(`slot ${read} has not the state after ${position} tokens`);
      if (pairs.some((slot, other) => slot === write && other >> 1 !== index))
        throw new Error(`two sequences use slot ${write}, which one writes`);
      this.#states.set([hashes[end - 1] ?? -1, position + end - row], 2 * write);
    });
  }

  /** For each sampled row, the token and the log-probabilities (V,) of all tokens. */
  private compute(
    batch: Batch,
    onLogits: ResultOptions["onLogits"],
    listed: boolean,
  ): { readonly tokenIds: Int32Array<ArrayBuffer>; readonly rows: readonly (readonly number[])[] } {
    const { vocabSize: vocab } = this.limits;
    const ids = readIds(batch, (slot) => this.#sampled[slot]);
    const hashes = ids.map((id, row) => this.#store(batch, row, id));
    this.#foldStates(batch, hashes);
    hashes.forEach((hash, row) => {
      this.#requireWindow(batch, row, hash);
    });
    const rows: (readonly number[])[] = [];
    const sampled = batch.sample_rows.map((row, sample) => {
      const hash = hashes[row] ?? -1;
      if (listed) rows.push(logprobsAfter(hash, vocab));
      const slot = batch.sample_slots[2 * sample] ?? -1;
      const flags = batch.sample_slots[2 * sample + 1] ?? 0;
      const settings = batch.sample_settings.slice(sample * 8, sample * 8 + 8);
      const logits = Float32Array.from(onLogits === undefined ? [] : logprobsAfter(hash, vocab));
      onLogits?.(logits, sample);
      const likeliest = onLogits === undefined ? hash % vocab : logits.indexOf(Math.max(...logits));
      const chosen = allowed(
        this.#chosen(likeliest, slot, flags, settings),
        (flags & SAMPLE_FLAGS.mask) === 0 ? undefined : this.#masks.get(slot),
        vocab,
      );
      if (slot >= 0) this.#sampled[slot] = chosen;
      const counts = (flags & SAMPLE_FLAGS.counts) === 0 ? undefined : this.counts.get(slot);
      if (counts !== undefined) counts[chosen] = (counts[chosen] ?? 0) + 1;
      return chosen;
    });
    return { tokenIds: Int32Array.from(sampled), rows };
  }

  /** For each sampled row of the heads, their guess. Throws unless their pages hold the row before each row. */
  #guess(batch: Batch): Int32Array {
    const { pageSize } = this.limits;
    const hashes = readIds(batch, (slot) => this.#guessed[2 * slot]).map((id, row) => {
      const sequence = batch.seq_starts.filter((start) => start <= row).length - 1;
      const pages = batch.page_ids.slice(batch.page_indptr[sequence], batch.page_indptr[sequence + 1]);
      const position = batch.positions[row] ?? 0;
      const cellOf = (at: number): number => (pages[Math.floor(at / pageSize)] ?? -1) * pageSize + (at % pageSize);
      const kept = batch.kept_rows?.[row] ?? NaN;
      const before = kept < 0 ? this.#guessed[2 * (-1 - kept) + 1] : this.#cells[0]?.[2 * kept + 1];
      if (this.hasAssistant) {
        if (kept >= 0 && kept !== cellOf(position)) throw new Error(`the kept row is not that of ${position}`);
        return nextHash(before ?? NaN, id);
      }
      if (position > 0 && this.#headCells[cellOf(position - 1)] !== before)
        throw new Error(`the heads have another row before ${position}`);
      const hash = nextHash(before ?? NaN, id);
      this.#headCells[cellOf(position)] = hash;
      return hash;
    });
    return Int32Array.from(batch.sample_rows, (row, sample) => {
      const hash = hashes[row] ?? -1;
      const slot = batch.sample_slots[2 * sample] ?? -1;
      const likeliest = this.errs && hash % 5 === 0 ? hash + 1 : hash;
      const chosen = this.#chosen(
        likeliest % this.limits.vocabSize,
        slot,
        0,
        batch.sample_settings.slice(sample * 8, sample * 8 + 8),
      );
      this.#guessed.set([chosen, hash], 2 * slot);
      return chosen;
    });
  }

  /** The token of a row whose likeliest one is given. */
  #chosen(likeliest: number, slot: number, flags: number, settings: readonly number[]): number {
    const { vocabSize: vocab } = this.limits;
    const [temperature, , , , draw = NaN] = settings;
    // At a flat temperature the draw alone chooses.
    if (temperature === 1e30) return Math.floor(draw * vocab);
    return (likeliest + this.#adjustment(slot, flags, settings)) % vocab;
  }

  /** What the states of a slot and the draw of a row add to its token. */
  #adjustment(slot: number, flags: number, settings: readonly number[]): number {
    const [temperature = NaN, , , , draw = NaN, repetition = NaN, frequency = NaN, presence = NaN] = settings;
    let sum = temperature === 0 ? 0 : Math.floor(draw * this.limits.vocabSize);
    if ((flags & SAMPLE_FLAGS.counts) !== 0) {
      const penalty = Math.round(100 * (repetition + 2 * frequency + 3 * presence));
      sum +=
        penalty * (this.counts.get(slot) ?? new Int32Array()).reduce((total, count, id) => total + count * (id + 1), 0);
    }
    if ((flags & SAMPLE_FLAGS.bias) !== 0)
      sum += (this.biases.get(slot) ?? new Float32Array()).reduce(
        (total, bias, id) => total + Math.round(Math.abs(bias)) * id,
        0,
      );
    return sum;
  }

  /** Write the token of a row to the pages of all groups, with the hash of all tokens up to it. */
  #store(batch: Batch, row: number, token: number): number {
    const position = batch.positions[row] ?? 0;
    const hashes = this.limits.groups.map((_, group) => {
      const before = position === 0 ? 0 : (this.#cell(batch, row, group, position - 1)[1] ?? NaN);
      const changed = token + (this.adapters.get(batch.adapters?.[row] ?? -1) ?? 0);
      const hash = nextHash(before, changed);
      this.#cell(batch, row, group, position).set([changed, hash]);
      return hash;
    });
    if (new Set(hashes).size > 1) throw new Error(`the groups disagree about position ${position}`);
    return hashes[0] ?? NaN;
  }

  /** Throws unless the pages hold every token that a row attends to, in order. */
  #requireWindow(batch: Batch, row: number, hash: number): void {
    const end = batch.positions[row] ?? 0;
    this.limits.groups.forEach(({ window }, group) => {
      let after = hash;
      for (let position = end; position > Math.max(-1, end - window); position--) {
        const [token = NaN, here] = this.#cell(batch, row, group, position);
        if (here !== after) throw new Error(`group ${group} has lost position ${position} before ${end}`);
        if (position === 0 || position === end - window + 1) continue;
        after = this.#cell(batch, row, group, position - 1)[1] ?? NaN;
        if (nextHash(after, token) !== here) throw new Error(`group ${group} has a wrong token at ${position}`);
      }
    });
  }

  /** The token and the hash at a position of the sequence of a row. */
  #cell(batch: Batch, row: number, group: number, position: number): Int32Array {
    const sequence = batch.seq_starts.filter((start) => start <= row).length - 1;
    const [ids = [], indptr = [], slots = []] =
      group === 0
        ? [batch.page_ids, batch.page_indptr, batch.slots]
        : [batch.window_page_ids, batch.window_page_indptr, batch.window_slots];
    const { pageSize } = this.limits;
    const page = ids.slice(indptr[sequence], indptr[sequence + 1])[Math.floor(position / pageSize)] ?? -1;
    const cell = page * pageSize + (position % pageSize);
    if (position === batch.positions[row] && cell !== slots[row]) throw new Error(`slot ${slots[row]} is not ${cell}`);
    return this.#cells[group]?.subarray(2 * cell, 2 * cell + 2) ?? new Int32Array();
  }
}

/** The token, or the next one that the mask allows. */
function allowed(token: number, mask: Int32Array | undefined, vocab: number): number {
  if (mask === undefined) return token;
  for (let step = 0; step < vocab; step++) {
    const id = (token + step) % vocab;
    if ((((mask[id >> 5] ?? 0) >> (id & 31)) & 1) === 1) return id;
  }
  throw new Error("nothing is allowed");
}

/** What the rows of a batch read: their tokens, of which those of slots are ``sampled``, or the features of images. */
function readIds(batch: Batch, sampled: (slot: number) => number | undefined): readonly number[] {
  const ids = batch.token_ids.map((id) => (id < 0 ? (sampled(-1 - id) ?? -1) : id));
  const { features = new Float32Array(), feature_rows: placed = [] } = batch;
  placed.forEach((row, index) => (ids[row] = features[(features.length / placed.length) * index] ?? NaN));
  return ids;
}
