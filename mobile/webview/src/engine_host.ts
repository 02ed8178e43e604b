// The page's engine as an app sees it: one bundle at a time, paused with the app, freed when memory is short and loaded again when it is next asked.

import { RequestError, isNearfarError } from "@nearfar/web/calls";
import type { EngineApi, EngineInfo, LoadProgress } from "@nearfar/web/calls";

import type { ConnectOptions, OpenEngine, Places } from "./open_engine.js";
import { openEngine } from "./open_engine.js";
import type { SupportScope } from "./support.js";
import { supportProblem } from "./support.js";

export interface HostOptions extends Places {
  /** What supportProblem looks at; the global scope where it is not given. */
  readonly scope?: SupportScope;
}

/** Those of a worker's engine. Bundles that lie in the app need no copy in the browser's store: ``store: false``. */
export type LoadOptions = ConnectOptions;

/** "freed": the next request loads the bundle again. */
export type HostState = "empty" | "loading" | "ready" | "freed";

export interface MemoryInfo {
  readonly state: HostState;
  readonly paused: boolean;
  /** Where the engine runs; null where there is none. */
  readonly place: "worker" | "page" | null;
  readonly bundle: string | null;
  /** On the device now: weights, keys and values, and all together. */
  readonly weightBytes: number;
  readonly stateBytes: number;
  readonly totalBytes: number;
}

/** A native channel is slow beside a worker's. */
const PROGRESS_MS = 100;

export class EngineHost {
  /** The loaded bundle's engine. Its calls throw RequestError where none is loaded; after `lowMemory` they load it again first. */
  readonly engine: EngineApi = this.facade();
  #wanted: { readonly bundle: string; readonly options: LoadOptions } | null = null;
  #opening: { readonly engine: Promise<OpenEngine>; readonly abort: AbortController } | null = null;
  #open: OpenEngine | null = null;
  #info: EngineInfo | null = null;
  #paused = false;
  /** Wake those who wait for resume. */
  readonly #waiting: (() => void)[] = [];

  constructor(private readonly options: HostOptions) {}

  /** Load a bundle in place of what was loaded. ``bundle`` is relative to the page. Throws BundleError, DeviceError, StorageError, WorkerError, or the signal's reason. */
  async load(bundle: string, options: LoadOptions = {}): Promise<EngineInfo> {
    this.destroy();
    const { signal, onProgress, ...kept } = options;
    this.#wanted = { bundle, options: kept };
    const { engine } = await this.open(signal, onProgress);
    return engine.info;
  }

  /** Leave the device alone until `resume`: answers wait where they are. Resolves when it has nothing more to do; a load that is under way goes on. */
  async pause(): Promise<void> {
    this.#paused = true;
    await this.#open?.engine.pause();
  }

  async resume(): Promise<void> {
    this.#paused = false;
    for (const wake of this.#waiting.splice(0)) wake();
    await this.#open?.engine.resume();
  }

  /** Free the device and the worker at once. Calls that run fail with a WorkerError. A load that is under way goes on. */
  lowMemory(): { readonly freedBytes: number } {
    const freedBytes = this.#open === null ? 0 : (this.#info?.totalBytes ?? 0);
    this.#open?.close();
    this.#open = null;
    return { freedBytes };
  }

  memory(): MemoryInfo {
    const state =
      this.#opening !== null ? "loading" : this.#open !== null ? "ready" : this.#wanted !== null ? "freed" : "empty";
    const { weightBytes, stateBytes, totalBytes } = (this.#open === null ? null : this.#info) ?? {
      weightBytes: 0,
      stateBytes: 0,
      totalBytes: 0,
    };
    return {
      state,
      paused: this.#paused,
      place: this.#open?.place ?? null,
      bundle: this.#wanted?.bundle ?? null,
      weightBytes,
      stateBytes,
      totalBytes,
    };
  }

  /** Free everything and forget the bundle. A load that is under way is aborted. */
  destroy(): void {
    this.#wanted = null;
    this.#opening?.abort.abort();
    this.#opening = null;
    this.lowMemory();
    this.#info = null;
  }

  /** The engine, after the load that is under way, or after a new one where it was freed. */
  private async ready(): Promise<EngineApi> {
    for (;;) {
      if (this.#open !== null) return this.#open.engine;
      if (this.#opening !== null) return (await this.#opening.engine).engine;
      if (this.#wanted === null) throw new RequestError("No model is loaded in the web view; call load first");
      if (!this.#paused) return (await this.open()).engine;
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  /** Makes a call. An engine whose worker has died is let go, so that the next call loads it again. */
  private async ask<Result>(make: (engine: EngineApi) => Result | Promise<Result>): Promise<Result> {
    const engine = await this.ready();
    try {
      return await make(engine);
    } catch (error) {
      if (isNearfarError(error) && error.code === "worker_error" && this.#open?.engine === engine) this.lowMemory();
      throw error;
    }
  }

  private async open(signal?: AbortSignal, onProgress?: (progress: LoadProgress) => void): Promise<OpenEngine> {
    const wanted = this.#wanted;
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
      // A first load that failed leaves nothing to load again; a later one may fail for the moment only.
      if (this.#info === null && this.#wanted === wanted) this.#wanted = null;
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
    if (this.#wanted === null) throw new Error("nothing is wanted");
    const { bundle, options } = this.#wanted;
    const problem = await supportProblem(this.options.scope);
    if (problem !== null) throw problem;
    return openEngine(
      bundle,
      { ...options, signal, ...(onProgress === undefined ? {} : { onProgress: seldom(onProgress) }) },
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
    ): Make => ((...args: Parameters<Make>) => this.ask((engine) => of(engine).create(...args))) as unknown as Make;
    const ready = (): Promise<EngineApi> => this.ready();
    return {
      get info() {
        return info();
      },
      chat: { completions: { create: create((engine) => engine.chat.completions) } },
      completions: { create: create((engine) => engine.completions) },
      embeddings: { create: create((engine) => engine.embeddings) },
      countTokens: (...args) => this.ask((engine) => engine.countTokens(...args)),
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

/** Tells each phase, and what comes within one of them ten times a second. The last of a load is a phase of its own. */
function seldom(tell: (progress: LoadProgress) => void): (progress: LoadProgress) => void {
  let phase = "";
  let last = -Infinity;
  return (progress) => {
    const now = performance.now();
    if (progress.phase === phase && now - last < PROGRESS_MS) return;
    phase = progress.phase;
    last = now;
    tell(progress);
  };
}
