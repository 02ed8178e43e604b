// The engine of encoders, which read complete texts: each batch is one submission of many texts without padding. The
// texts of all requests share batches, and requests take turns, so a large one does not delay a small one for long.

import { DeviceError } from "../errors.js";
import { Gate } from "../engine/gate.js";
import type { TextRunner } from "../engine/step_runner.js";
import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import { addText } from "../runtime/sequence_batch.js";
import type { EncodingEngine, TokenText } from "./encoder_model.js";
import { requireNumbers } from "./encoder_model.js";

interface Request {
  readonly texts: readonly TokenText[];
  readonly results: Float32Array[];
  /** The index of the next text that is in no batch yet. */
  next: number;
  /** The number of texts without a result. */
  missing: number;
  readonly resolve: (results: readonly Float32Array[]) => void;
  readonly reject: (error: unknown) => void;
}

/** A text of a request in a batch. */
interface Place {
  readonly request: Request;
  readonly index: number;
}

interface OpenWork {
  readonly batch: Batch;
  readonly places: readonly Place[];
}

export class RaggedEncoder implements EncodingEngine {
  #runner: TextRunner;
  /** Requests with texts that are in no batch, in the order of their turns. */
  #waiting: Request[] = [];
  #unfinished = 0;
  #isWorking = false;

  /**
   * ``replaceRunner`` returns another runner after the device has failed, or throws. With ``perToken`` each token has a
   * row of results.
   */
  constructor(
    runner: TextRunner,
    private readonly perToken: boolean,
    private readonly replaceRunner: () => Promise<TextRunner>,
    private readonly gate = new Gate(),
  ) {
    this.#runner = runner;
  }

  /** Whether texts are being computed, or the gate is closed. */
  get isBusy(): boolean {
    return this.#unfinished > 0 || this.gate.isClosed;
  }

  /** There are no pages. */
  lendPages(): readonly number[] {
    return [];
  }

  returnPages(): void {
    // There are none.
  }

  /** Throws DeviceError, or the signal's reason as soon as it aborts; no more batches are then made of these texts. */
  async encode(texts: readonly TokenText[], signal?: AbortSignal): Promise<readonly Float32Array[]> {
    signal?.throwIfAborted();
    if (texts.length === 0) return [];
    this.#unfinished++;
    let request: Request | null = null;
    const stop = (): void => {
      if (request !== null) this.#drop(request, signal?.reason);
    };
    try {
      const results = await new Promise<readonly Float32Array[]>((resolve, reject) => {
        request = { texts, results: [], next: 0, missing: texts.length, resolve, reject };
        this.#waiting.push(request);
        signal?.addEventListener("abort", stop, { once: true });
        if (!this.#isWorking) void this.#work();
      });
      return requireNumbers(results);
    } finally {
      signal?.removeEventListener("abort", stop);
      this.#unfinished--;
    }
  }

  #drop(request: Request, error: unknown): void {
    this.#waiting = this.#waiting.filter((other) => other !== request);
    request.reject(error);
  }

  /** One batch is prepared and submitted while the device computes the one before it. */
  async #work(): Promise<void> {
    this.#isWorking = true;
    // Requests that are made at the same time share a batch.
    await Promise.resolve();
    let before = Promise.resolve();
    while (this.#waiting.length > 0) {
      await this.gate.opened();
      const work = this.#nextBatch();
      if (work.places.length === 0) continue;
      const done = this.gate.through(() => this.#compute(work));
      await before;
      before = done;
    }
    await before;
    this.#isWorking = false;
    if (this.#waiting.length > 0) void this.#work();
  }

  /** One text of each request in turn, while there is room. */
  #nextBatch(): OpenWork {
    const { tokens, sequences } = this.#runner.limits;
    const batch = emptyBatch();
    const places: Place[] = [];
    for (let [request] = this.#waiting; request !== undefined && places.length < sequences; [request] = this.#waiting) {
      const text = request.texts[request.next];
      if (text === undefined || batch.token_ids.length + text.ids.length > tokens) break;
      addText(batch, text.ids, text.types);
      places.push({ request, index: request.next++ });
      this.#waiting.shift();
      if (request.next < request.texts.length) this.#waiting.push(request);
    }
    return { batch, places };
  }

  /** Never rejects: errors are those of the requests. A device that fails is replaced once. */
  async #compute(work: OpenWork): Promise<void> {
    const runner = this.#runner;
    try {
      this.#publish(work, await runner.encode(work.batch));
    } catch (error) {
      try {
        if (!(error instanceof DeviceError)) throw error;
        // Another batch may have replaced it meanwhile.
        if (this.#runner === runner) this.#runner = await this.#replaced(runner);
        this.#publish(work, await this.#runner.encode(work.batch));
      } catch (last) {
        for (const request of new Set(work.places.map((place) => place.request))) this.#drop(request, last);
      }
    }
  }

  #replacement: { readonly of: TextRunner; readonly by: Promise<TextRunner> } | null = null;

  /** Two batches that fail on the same device share its replacement. */
  #replaced(runner: TextRunner): Promise<TextRunner> {
    if (this.#replacement?.of !== runner) this.#replacement = { of: runner, by: this.replaceRunner() };
    return this.#replacement.by;
  }

  #publish({ batch, places }: OpenWork, rows: Float32Array): void {
    const count = this.perToken ? batch.token_ids.length : places.length;
    const columns = rows.length / count;
    let start = 0;
    places.forEach(({ request, index }, place) => {
      const length = this.perToken ? (batch.seq_starts[place + 1] ?? 0) - (batch.seq_starts[place] ?? 0) : 1;
      request.results[index] = rows.slice(start * columns, (start + length) * columns);
      start += length;
      if (--request.missing === 0) request.resolve(request.results);
    });
  }
}
