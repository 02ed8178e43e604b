// The engines of a worker, by the addresses of their bundles. Pages that request the same bundles share one engine; the
// last page that leaves frees it.

import type { EngineApi } from "../api/engine_api.js";
import type { LoadOptions, LoadProgress } from "../load_options.js";

export type LoadEngine = (bundles: readonly string[], options: LoadOptions) => Promise<EngineApi>;

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

  /**
   * The first caller's options apply. A load ends when all callers that wait for it have aborted. Throws the errors of
   * the load.
   */
  async borrow(bundles: readonly string[], options: LoadOptions): Promise<Loan> {
    const key = bundles.join(" ");
    const { signal, onProgress = () => undefined } = options;
    signal?.throwIfAborted();
    const entry = this.#entries.get(key) ?? this.#start(key, bundles, options);
    entry.users++;
    entry.listeners.add(onProgress);
    let released = false;
    const release = (): void => {
      if (released) return;
      released = true;
      if (--entry.users === 0) this.#end(key, entry);
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

  #start(key: string, bundles: readonly string[], options: LoadOptions): Entry {
    const aborted = new AbortController();
    // The caller that starts the load receives all of its progress.
    const listeners = new Set<(progress: LoadProgress) => void>(
      options.onProgress === undefined ? [] : [options.onProgress],
    );
    const onProgress = (progress: LoadProgress): void => {
      for (const listener of listeners) listener(progress);
    };
    const entry: Entry = {
      engine: this.load(bundles, { ...options, signal: aborted.signal, onProgress }),
      aborted,
      listeners,
      users: 0,
    };
    this.#entries.set(key, entry);
    return entry;
  }

  #end(key: string, entry: Entry): void {
    if (this.#entries.get(key) === entry) this.#entries.delete(key);
    entry.aborted.abort();
    entry.engine.then(
      (engine) => {
        engine.destroy();
      },
      // The callers that waited have received the error.
      () => undefined,
    );
  }
}
