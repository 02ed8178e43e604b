// The page's engine for an app: it has one bundle at a time, pauses with the app, frees its memory on request, and
// loads the bundle again for the next request.

import { RequestError, isNearfarError } from "@nearfar/web/calls";
import type { EngineApi, EngineInfo, LoadProgress } from "@nearfar/web/calls";

import type { ConnectOptions, OpenEngine, EngineStarters } from "./open_engine.js";
import { openEngine } from "./open_engine.js";
import type { SupportScope } from "./support.js";
import { supportProblem } from "./support.js";

export interface HostOptions extends EngineStarters {
  /** The scope that supportProblem checks (default: the global scope). */
  readonly scope?: SupportScope;
}

/** The options of a worker's engine. Bundles inside the app need no copy in the browser's store: ``store: false``. */
export type LoadOptions = ConnectOptions;

/** "freed": the next request loads the bundle again. */
export type HostState = "empty" | "loading" | "ready" | "freed";

export interface MemoryInfo {
  readonly state: HostState;
  readonly paused: boolean;
  /** Where the engine runs; null without an engine. */
  readonly place: "worker" | "page" | null;
  readonly bundle: string | null;
  /** Bytes on the device now: weights, keys and values, and the total. */
  readonly weightBytes: number;
  readonly stateBytes: number;
  readonly totalBytes: number;
}

/** The minimum interval of progress reports, because a native channel is slower than a worker's. */
const PROGRESS_MS = 100;

export class EngineHost {
  /**
   * The loaded bundle's engine. Its calls throw RequestError if no bundle is loaded. After `lowMemory`, they first load
   * the bundle again.
   */
  readonly engine: EngineApi = this.facade();
  #requested: { readonly bundle: string; readonly options: LoadOptions } | null = null;
  #opening: { readonly engine: Promise<OpenEngine>; readonly abort: AbortController } | null = null;
  #open: OpenEngine | null = null;
  #info: EngineInfo | null = null;
  #paused = false;
  /** Functions that wake the requests that wait for resume. */
  readonly #waiting: (() => void)[] = [];

  constructor(private readonly options: HostOptions) {}

  /**
   * Load a bundle and unload the previous one. ``bundle`` is relative to the page. Throws BundleError, DeviceError,
   * StorageError, WorkerError, or the signal's reason.
   */
  async load(bundle: string, options: LoadOptions = {}): Promise<EngineInfo> {
    this.destroy();
    const { signal, onProgress, ...others } = options;
    this.#requested = { bundle, options: others };
    const { engine } = await this.open(signal, onProgress);
    return engine.info;
  }

  /**
   * Submit no work to the device until `resume`; answers wait. Resolves when the device is idle. A load in progress
   * continues.
   */
  async pause(): Promise<void> {
    this.#paused = true;
    await this.#open?.engine.pause();
  }

  async resume(): Promise<void> {
    this.#paused = false;
    for (const wake of this.#waiting.splice(0)) wake();
    await this.#open?.engine.resume();
  }

  /** Free the device and the worker at once. Running calls fail with a WorkerError. A load in progress continues. */
  lowMemory(): { readonly freedBytes: number } {
    const freedBytes = this.#open === null ? 0 : (this.#info?.totalBytes ?? 0);
    this.#open?.close();
    this.#open = null;
    return { freedBytes };
  }

  memory(): MemoryInfo {
    const state =
      this.#opening !== null ? "loading" : this.#open !== null ? "ready" : this.#requested !== null ? "freed" : "empty";
    const { weightBytes, stateBytes, totalBytes } = (this.#open === null ? null : this.#info) ?? {
      weightBytes: 0,
      stateBytes: 0,
      totalBytes: 0,
    };
    return {
      state,
      paused: this.#paused,
      place: this.#open?.place ?? null,
      bundle: this.#requested?.bundle ?? null,
      weightBytes,
      stateBytes,
      totalBytes,
    };
  }

  /** Free everything and forget the bundle. A load in progress is aborted. */
  destroy(): void {
    this.#requested = null;
    this.#opening?.abort.abort();
    this.#opening = null;
    this.lowMemory();
    this.#info = null;
  }

  /** The engine, after the load in progress, or after a new load if it was freed. */
  private async ready(): Promise<EngineApi> {
    for (;;) {
      if (this.#open !== null) return this.#open.engine;
      if (this.#opening !== null) return (await this.#opening.engine).engine;
      if (this.#requested === null) throw new RequestError("No model is loaded in the web view; call load first");
      if (!this.#paused) return (await this.open()).engine;
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  /** Makes a call. An engine whose worker has died is freed, so that the next call loads it again. */
  private async withEngine<Result>(make: (engine: EngineApi) => Result | Promise<Result>): Promise<Result> {
    const engine = await this.ready();
    try {
      return await make(engine);
    } catch (error) {
      if (isNearfarError(error) && error.code === "worker_error" && this.#open?.engine === engine) this.lowMemory();
      throw error;
    }
  }

  private async open(signal?: AbortSignal, onProgress?: (progress: LoadProgress) => void): Promise<OpenEngine> {
    const requested = this.#requested;
    const abort = new AbortController();
    const stop = (): void => {
      abort.abort(signal?.reason);
    };
    signal?.throwIfAborted();
    signal?.addEventListener("abort", stop);
    const engine = this.start(abort.signal, onProgress);
    const opening = { engine, abort };
    this.#opening = opening;
    try {
      const opened = await engine;
      if (this.#opening !== opening) {
        opened.close();
        throw abort.signal.reason as Error;
      }
      this.#open = opened;
      this.#info = opened.engine.info;
      if (this.#paused) await opened.engine.pause();
      return opened;
    } catch (error) {
      // If the first load of a bundle fails, the bundle is forgotten. A later load may fail only temporarily.
      if (this.#info === null && this.#requested === requested) this.#requested = null;
      throw error;
    } finally {
      if (this.#opening === opening) this.#opening = null;
      signal?.removeEventListener("abort", stop);
    }
  }

  private async start(
    signal: AbortSignal,
    onProgress: ((progress: LoadProgress) => void) | undefined,
  ): Promise<OpenEngine> {
    if (this.#requested === null) throw new Error("no bundle is requested");
    const { bundle, options } = this.#requested;
    const problem = await supportProblem(this.options.scope);
    if (problem !== null) throw problem;
    return openEngine(
      bundle,
      { ...options, signal, ...(onProgress === undefined ? {} : { onProgress: throttled(onProgress) }) },
      this.options,
    );
  }

  private facade(): EngineApi {
    const info = (): EngineInfo => {
      if (this.#info === null) throw new RequestError("No model is loaded in the web view; call load first");
      return this.#info;
    };
    const create = <Make extends (...args: never[]) => unknown>(
      of: (engine: EngineApi) => { readonly create: Make },
    ): Make =>
      ((...args: Parameters<Make>) => this.withEngine((engine) => of(engine).create(...args))) as unknown as Make;
    const ready = (): Promise<EngineApi> => this.ready();
    return {
      get info() {
        return info();
      },
      chat: { completions: { create: create((engine) => engine.chat.completions) } },
      completions: { create: create((engine) => engine.completions) },
      embeddings: { create: create((engine) => engine.embeddings) },
      rerank: (...args) => this.withEngine((engine) => engine.rerank(...args)),
      score: (...args) => this.withEngine((engine) => engine.score(...args)),
      classify: (...args) => this.withEngine((engine) => engine.classify(...args)),
      decide: (...args) => this.withEngine((engine) => engine.decide(...args)),
      countTokens: (...args) => this.withEngine((engine) => engine.countTokens(...args)),
      transcribe: ((...args: Parameters<EngineApi["transcribe"]>) =>
        this.withEngine((engine) => engine.transcribe(...args))) as EngineApi["transcribe"],
      async *generate(...args) {
        yield* (await ready()).generate(...args);
      },
      pause: () => this.pause(),
      resume: () => this.resume(),
      destroy: () => {
        this.destroy();
      },
    };
  }
}

/**
 * Reports each phase, and progress within a phase ten times per second. The end of a load is a phase, so it is
 * reported.
 */
function throttled(report: (progress: LoadProgress) => void): (progress: LoadProgress) => void {
  let phase = "";
  let last = -Infinity;
  return (progress) => {
    const now = performance.now();
    if (progress.phase === phase && now - last < PROGRESS_MS) return;
    phase = progress.phase;
    last = now;
    report(progress);
  };
}
