// useEngine: loads an engine for as long as a component is mounted.

import { useEffect, useRef, useState } from "react";

import type { Engine } from "../engine.js";
import type { BundleAddress, LoadOptions, LoadProgress } from "../load_options.js";

/** Frees an engine (`destroy`) or a Hybrid (`close`). */
type Loaded = { destroy(): void } | { close(): void };

/** Loads an engine, such as `(options) => connectEngine(worker, "./bundle/", options)`. */
export type LoadEngine<E extends Loaded> = (options: LoadEvents) => Promise<E>;

interface LoadEvents {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: LoadProgress) => void;
}

export interface UseEngineOptions extends Omit<LoadOptions, "signal" | "onProgress"> {
  /** For a function as the source: another key loads another engine. */
  readonly key?: string | undefined;
}

export interface EngineState<E> {
  readonly status: "idle" | "loading" | "ready" | "error";
  /** Null unless the status is ready. */
  readonly engine: E | null;
  /** Null before the first report, and always for a function that reports no progress. */
  readonly progress: LoadProgress | null;
  /** Null unless the status is error; then usually a NearfarError. */
  readonly error: unknown;
  /** Loads again, for example after an error. */
  readonly retry: () => void;
}

type Source<E extends Loaded> = BundleAddress | readonly BundleAddress[] | LoadEngine<E> | null;
type Published<E> = Omit<EngineState<E>, "retry"> & { readonly key: string | null };

/**
 * Load an engine when the component mounts and free it when it unmounts. Another address loads another engine; null
 * loads none. A function is called once for each `options.key`, so it may be a different function at each render. The
 * other options are those of `Engine.load`, and are read when the load starts. In StrictMode, which mounts twice, the
 * engine is loaded once.
 */
export function useEngine(
  source: BundleAddress | readonly BundleAddress[] | null,
  options?: UseEngineOptions,
): EngineState<Engine>;
export function useEngine<E extends Loaded>(source: LoadEngine<E> | null, options?: UseEngineOptions): EngineState<E>;
export function useEngine<E extends Loaded>(
  source: Source<E>,
  options: UseEngineOptions = {},
): EngineState<E | Engine> {
  const [attempt, setAttempt] = useState(0);
  const key =
    source === null ? null : `${attempt} ${typeof source === "function" ? (options.key ?? "") : addresses(source)}`;
  const [published, publish] = useState<Published<E | Engine>>({ key, ...LOADING });
  const latest = useRef({ source, options });
  const running = useRef<Load<E> | null>(null);

  useEffect(() => {
    latest.current = { source, options };
  });

  useEffect(() => {
    if (key === null) return;
    const before = running.current;
    // StrictMode has unmounted the component and mounts it again.
    const isRemount = before?.key === key && before.resume();
    const load = isRemount
      ? before
      : new Load(key, loaderOf(latest.current.source, latest.current.options), (state) => {
          publish({ key, ...state });
        });
    // A component that was hidden (Activity) is shown again with the state of the earlier engine.
    if (before !== null && !isRemount) publish({ key, ...LOADING });
    running.current = load;
    return () => {
      load.endSoon();
    };
  }, [key]);

  const { key: publishedKey, ...state } = published;
  const current = key === null ? IDLE : publishedKey === key ? state : LOADING;
  return {
    ...current,
    retry: () => {
      setAttempt(attempt + 1);
    },
  };
}

const IDLE = { status: "idle", engine: null, progress: null, error: null } as const;
const LOADING = { status: "loading", engine: null, progress: null, error: null } as const;

/** One load and its engine, until it ends. */
class Load<E extends Loaded> {
  readonly #over = new AbortController();
  #ending: ReturnType<typeof setTimeout> | undefined;
  #engine: E | Engine | null = null;

  constructor(
    readonly key: string,
    load: LoadEngine<E | Engine>,
    publish: (state: Omit<Published<E | Engine>, "key">) => void,
  ) {
    const { signal } = this.#over;
    const onProgress = (progress: LoadProgress): void => {
      if (!signal.aborted && this.#engine === null) publish({ ...LOADING, progress });
    };
    // Treat a loader that throws synchronously like one that rejects.
    Promise.resolve()
      .then(() => load({ signal, onProgress }))
      .then(
        (engine) => {
          if (signal.aborted) free(engine);
          else publish({ ...LOADING, status: "ready", engine: (this.#engine = engine) });
        },
        (error: unknown) => {
          if (!signal.aborted) publish({ ...LOADING, status: "error", error });
        },
      );
  }

  /** Cancel endSoon. False if the load has already ended. */
  resume(): boolean {
    clearTimeout(this.#ending);
    return !this.#over.signal.aborted;
  }

  /** End the load, unless resume is called in the same task. */
  endSoon(): void {
    this.#ending = setTimeout(() => {
      this.#over.abort();
      if (this.#engine !== null) free(this.#engine);
    });
  }
}

function loaderOf<E extends Loaded>(source: Source<E>, hookOptions: UseEngineOptions): LoadEngine<E | Engine> {
  if (typeof source === "function") return source;
  if (source === null) throw new Error("there is nothing to load");
  const options = Object.fromEntries(Object.entries(hookOptions).filter(([name]) => name !== "key"));
  // nearfar.js is not in react.js, because an app with an engine in a worker does not need it.
  return async (events) => (await import("../index.js")).Engine.load(source, { ...options, ...events });
}

function addresses(source: BundleAddress | readonly BundleAddress[]): string {
  const list = Array.isArray(source) ? (source as readonly BundleAddress[]) : [source as BundleAddress];
  return JSON.stringify(
    list.map((address) =>
      typeof address === "string" ? address : address instanceof URL ? address.href : address.location,
    ),
  );
}

function free(engine: Loaded): void {
  if ("destroy" in engine) engine.destroy();
  else engine.close();
}
