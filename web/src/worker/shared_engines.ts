// The engines of a worker, by the address of their bundle. Who asks for the same bundle gets the same engine; the last one to leave frees it.

import type { EngineApi } from "../api/engine_api.js";
import type { LoadOptions, LoadProgress } from "../load.js";

export type LoadEngine = (bundle: string, options: LoadOptions) => Promise<EngineApi>;

export interface Loan {
  readonly engine: EngineApi;
  release(): void;
}

interface Entry {
  readonly engine: Promise<EngineApi>;
  readonly aborted: AbortController;
  readonly listeners: Set<(progress: LoadProgress) => void>;
  users: number;
}

export class SharedEngines {
  readonly #entries = new Map<string, Entry>();

  constructor(private readonly load: LoadEngine) {}

  /** The options are those of whoever comes first. A load ends when everyone who waits for it has aborted. Throws what loading throws. */
  async borrow(bundle: string, options: LoadOptions): Promise<Loan> {
    const { signal, onProgress = () => undefined } = options;
    signal?.throwIfAborted();
    const entry = this.#entries.get(bundle) ?? this.start(bundle, options);
    entry.users++;
    entry.listeners.add(onProgress);
    let released = false;
    const release = (): void => {
      if (released) return;
      released = true;
      if (--entry.users === 0) this.end(bundle, entry);
    };
    signal?.addEventListener("abort", release, { once: true });
    try {
      const engine = await entry.engine;
      signal?.throwIfAborted();
      return { engine, release };
    } catch (error) {
      release();
      throw error;
    } finally {
      signal?.removeEventListener("abort", release);
      entry.listeners.delete(onProgress);
    }
  }

  private start(bundle: string, options: LoadOptions): Entry {
    const aborted = new AbortController();
    const listeners = new Set<(progress: LoadProgress) => void>();
    const onProgress = (progress: LoadProgress): void => {
      for (const listener of listeners) listener(progress);
    };
    const entry: Entry = { engine: this.load(bundle, { ...options, signal: aborted.signal, onProgress }), aborted, listeners, users: 0 };
    this.#entries.set(bundle, entry);
    return entry;
  }

  private end(bundle: string, entry: Entry): void {
    if (this.#entries.get(bundle) === entry) this.#entries.delete(bundle);
    entry.aborted.abort();
    entry.engine.then(
      (engine) => {
        engine.destroy();
      },
      // Whoever waited has been told.
      () => undefined,
    );
  }
}
