// The tuner: finds the fastest variants of a trusted runner while the engine has nothing else to do, and records them for the device.

import type { TuningEntry } from "../runtime/manifest.js";
import type { TrustedRunner } from "../runtime/trust.js";
import { tune } from "../runtime/tune.js";
import type { TokenEngine } from "./token_engine.js";

const POLL_MS = 50;

/** What the tuner needs of the engine: to know when it has nothing to do, and a page. */
export type TunedEngine = Pick<TokenEngine, "isBusy" | "lendPage" | "returnPage">;

export class Tuner {
  /** The record of this device, measured now or before; null where there is none. */
  readonly record: Promise<TuningEntry | null>;
  readonly #stopped = new AbortController();

  constructor(
    private readonly trusted: TrustedRunner,
    private readonly engine: TunedEngine,
  ) {
    this.record = this.#measure();
    // A caller that awaits the record sees the failure; the next answer runs into its cause anyway.
    this.record.catch(() => undefined);
  }

  stop(): void {
    this.#stopped.abort();
  }

  async #measure(): Promise<TuningEntry | null> {
    const { runner, device, choices, tuning, tuningNote } = this.trusted;
    if (tuningNote === null) return tuning;
    const { signal } = this.#stopped;
    const page = this.engine.lendPage();
    if (page === null) return null;
    try {
      const variants = await tune(runner, { choices, page, idle: () => this.#idle(), signal });
      runner.choose({ off: choices.off, front: variants });
      await tuningNote.write(variants);
      return { adapter: device.adapterEntry, activation: device.activation, variants };
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    } finally {
      this.engine.returnPage(page);
    }
  }

  /** Lets everything else go first, then waits for the end of an answer. */
  async #idle(): Promise<void> {
    do await new Promise((resolve) => setTimeout(resolve, this.engine.isBusy ? POLL_MS : 0));
    while (this.engine.isBusy);
  }
}
