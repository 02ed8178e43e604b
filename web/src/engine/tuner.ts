// The tuner: measures what suits a trusted runner's device while the engine is idle, and records it. tuning.js measures.

import { importTuning } from "../runtime/import_later.js";
import type { TuningEntry } from "../runtime/manifest.js";
import type { TrustedRunner } from "../runtime/trust.js";
import type { TuningModule } from "../tuning/index.js";
import type { TokenEngine } from "./token_engine.js";

const POLL_MS = 50;

/** The tuner needs to know when the engine is idle, and borrows a page of each group from it. */
export type TunedEngine = Pick<TokenEngine, "isBusy" | "lendPages" | "returnPages">;

export class Tuner {
  /** The record of this device, measured now or earlier; null if this device was not measured. */
  readonly record: Promise<TuningEntry | null>;
  readonly #stopped = new AbortController();

  constructor(
    private readonly trusted: TrustedRunner,
    private readonly engine: TunedEngine,
    private readonly module: TuningModule | null = null,
  ) {
    this.record = this.#measure();
    // A caller that awaits the record gets the failure; the next answer fails for the same cause anyway.
    this.record.catch(() => undefined);
  }

  stop(): void {
    this.#stopped.abort();
  }

  async #measure(): Promise<TuningEntry | null> {
    const { runner, device, choices, tuning, tuningNote } = this.trusted;
    if (tuningNote === null) return tuning;
    const { signal } = this.#stopped;
    const pages = this.engine.lendPages();
    if (pages === null) return tuning;
    try {
      const { measure } = this.module ?? (await importTuning());
      const measured = await measure(runner, tuning, { choices, pages, idle: () => this.#idle(), signal });
      const record = { adapter: device.adapterEntry, activation: device.activation, ...measured };
      await tuningNote.write(record);
      return record;
    } catch (error) {
      if (signal.aborted) return tuning;
      throw error;
    } finally {
      this.engine.returnPages();
    }
  }

  /** Yields to all other work, then waits until no answer is being generated. */
  async #idle(): Promise<void> {
    do await new Promise((resolve) => setTimeout(resolve, this.engine.isBusy ? POLL_MS : 0));
    while (this.engine.isBusy);
  }
}
