// The engine of decoders that make vectors or scores, whose keys and values are in pages, and recurrent states in slots:
// a long text takes several batches.
//
// Nothing is cached from one request to the next, so requests run one after the other, and each has all pages of the
// pool.

import { DeviceError } from "../errors.js";
import { addTokens, emptyBatch } from "../runtime/batch.js";
import type { PagesByGroup } from "../runtime/page_groups.js";
import { pagesOfSequence } from "../runtime/page_groups.js";
import { sampleLast } from "../runtime/sequence_batch.js";
import { Gate } from "../engine/gate.js";
import type { TextRunner } from "../engine/step_runner.js";
import type { EncodingEngine, TokenText } from "./encoder_model.js";
import { requireNumbers } from "./encoder_model.js";

/**
 * One text in progress: ``done`` of its tokens are in its pages, those of each group in the order of their use, and
 * ``state`` is the slot of its states.
 */
interface Text {
  readonly ids: readonly number[];
  readonly index: number;
  pages: PagesByGroup;
  state: number;
  done: number;
}

export class PagedEncoder implements EncodingEngine {
  #runner: TextRunner;
  #last: Promise<unknown> = Promise.resolve();
  #waiting = 0;

  /** ``replaceRunner`` returns another runner after the device has failed, or throws. */
  constructor(
    runner: TextRunner,
    private readonly replaceRunner: () => Promise<TextRunner>,
    private readonly gate = new Gate(),
  ) {
    this.#runner = runner;
  }

  /** Whether texts are being embedded, or the gate is closed. */
  get isBusy(): boolean {
    return this.#waiting > 0 || this.gate.isClosed;
  }

  /** Between requests all pages are free. */
  lendPages(): readonly number[] {
    return this.#runner.limits.groups.map(() => 0);
  }

  returnPages(): void {
    // No request has used the pages meanwhile.
  }

  /**
   * The vector of each text: the output of the model's last norm, or the scores of its head. Throws RequestError,
   * DeviceError, or the signal's reason.
   */
  async encode(given: readonly TokenText[], signal?: AbortSignal): Promise<readonly Float32Array[]> {
    const texts = given.map(({ ids }) => ids);
    this.#waiting++;
    try {
      const turn = this.#last.then(() => this.#withRecovery(texts, signal));
      this.#last = turn.catch(() => undefined);
      return requireNumbers(await turn);
    } finally {
      this.#waiting--;
    }
  }

  /** A device that fails is replaced once. */
  async #withRecovery(
    texts: readonly (readonly number[])[],
    signal: AbortSignal | undefined,
  ): Promise<readonly Float32Array[]> {
    try {
      return await this.#compute(texts, signal);
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      this.#runner = await this.replaceRunner();
      return this.#compute(texts, signal);
    }
  }

  async #compute(
    texts: readonly (readonly number[])[],
    signal: AbortSignal | undefined,
  ): Promise<readonly Float32Array[]> {
    const { pageSize, groups, tokens, sequences, states: slots = 0 } = this.#runner.limits;
    const vectors: Float32Array[] = [];
    const free = groups.map(({ pages }) => Array.from({ length: pages }, (_, page) => page));
    const states = Array.from({ length: slots }, (_, slot) => slot);
    const waiting = texts.map((ids, index): Text => ({ ids, index, pages: [], state: 0, done: 0 }));
    let running: Text[] = [];
    let before = Promise.resolve();
    while (waiting.length + running.length > 0) {
      await this.gate.opened();
      signal?.throwIfAborted();
      for (let [next] = waiting; next !== undefined && running.length < sequences; [next] = waiting) {
        const sizes = { context: next.ids.length, pageSize, maxTokens: tokens };
        const counts = groups.map((group) => pagesOfSequence(group, sizes));
        if (counts.some((count, group) => count > (free[group]?.length ?? 0))) break;
        next.pages = free.map((some, group) => some.splice(0, counts[group]));
        next.state = states.pop() ?? 0;
        running.push(next);
        waiting.shift();
      }
      let room = tokens;
      const batch = emptyBatch();
      for (const text of running) {
        const part = text.ids.slice(text.done, text.done + room);
        if (part.length === 0) break;
        room -= part.length;
        text.done += part.length;
        // The pages behind a window are used again.
        const length = Math.ceil(text.done / pageSize);
        const pages = text.pages.map((own) => Array.from({ length }, (_, index) => own[index % own.length] ?? -1));
        addTokens(batch, part, text.done - part.length, pages, pageSize);
        if (slots > 0) batch.state_slots.push(text.state, text.state);
        if (text.done === text.ids.length) sampleLast(batch);
      }
      const ended = running.filter(({ ids, done }) => done === ids.length);
      running = running.filter((text) => !ended.includes(text));
      // Batches run in order, so the next text on these pages and in this slot writes to them later.
      for (const text of ended) {
        text.pages.forEach((own, group) => free[group]?.push(...own));
        if (slots > 0) states.push(text.state);
      }
      const encoded = this.gate
        .through(() => this.#runner.encode(batch))
        .then((rows) => {
          const size = rows.length / ended.length;
          ended.forEach(({ index }, row) => (vectors[index] = rows.slice(row * size, (row + 1) * size)));
        });
      // If one batch fails, the next one fails too.
      encoded.catch(() => undefined);
      await before;
      before = encoded;
    }
    await before;
    return vectors;
  }
}
