// Chrome's Prompt API on an engine of this package: createLanguageModel returns an object with the interface of window.LanguageModel.

import type { EngineApi } from "../api/engine_api.js";
import type { LoadProgress } from "../load.js";
import { unlessAborted } from "../runtime/abort.js";
import { domError } from "./dom_errors.js";
import type { LanguageModelPrompt } from "./prompt.js";
import { canonicalPrompt } from "./prompt.js";
import type { SamplingOptions } from "./sampling.js";
import { readSampling } from "./sampling.js";
import { LanguageModel } from "./session.js";

export type Availability = "unavailable" | "downloadable" | "downloading" | "available";

export interface LanguageModelExpected {
  readonly type: string;
  readonly languages?: readonly string[] | undefined;
}

export interface LanguageModelCreateCoreOptions extends SamplingOptions {
  readonly expectedInputs?: readonly LanguageModelExpected[] | undefined;
  readonly expectedOutputs?: readonly LanguageModelExpected[] | undefined;
  readonly tools?: readonly unknown[] | undefined;
}

export interface LanguageModelCreateOptions extends LanguageModelCreateCoreOptions {
  readonly initialPrompts?: LanguageModelPrompt | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly monitor?: ((monitor: CreateMonitor) => void) | undefined;
}

/** Its "downloadprogress" events have ``loaded`` from 0 to 1. */
export interface CreateMonitor extends EventTarget {
  addEventListener(type: "downloadprogress", listener: (event: ProgressEvent) => void, options?: AddEventListenerOptions | boolean): void;
  addEventListener(...args: Parameters<EventTarget["addEventListener"]>): void;
}

/** What window.LanguageModel has. */
export interface LanguageModelFactory {
  availability(options?: LanguageModelCreateCoreOptions): Promise<Availability>;
  create(options?: LanguageModelCreateOptions): Promise<LanguageModel>;
}

export type EngineLoader = (options: { readonly onProgress: (progress: LoadProgress) => void }) => Promise<EngineApi>;

/** ``engine``: one that is loaded, or a function that loads it, which the first create() calls. */
export function createLanguageModel(engine: EngineApi | EngineLoader): LanguageModelFactory {
  let loading: Promise<EngineApi> | null = typeof engine === "function" ? null : Promise.resolve(engine);
  let loaded = typeof engine !== "function";
  const monitors = new Set<(loaded: number) => void>();
  const load = (): Promise<EngineApi> =>
    (loading ??= (engine as EngineLoader)({
      onProgress: ({ loadedBytes, totalBytes }) => {
        for (const monitor of monitors) monitor(totalBytes === 0 ? 0 : loadedBytes / totalBytes);
      },
    }).then(
      (ready) => {
        loaded = true;
        return ready;
      },
      (error: unknown) => {
        // The next create tries again.
        loading = null;
        throw domError(error);
      },
    ));
  return {
    availability: (options = {}) => {
      const isText = [...(options.expectedInputs ?? []), ...(options.expectedOutputs ?? [])].every(({ type }) => type === "text");
      if (!isText || (options.tools ?? []).length > 0) return Promise.resolve("unavailable");
      return Promise.resolve(loaded ? "available" : loading === null ? "downloadable" : "downloading");
    },
    async create(options = {}) {
      const { signal, monitor, initialPrompts } = options;
      signal?.throwIfAborted();
      const sampling = readSampling(options);
      if ((await this.availability(options)) === "unavailable") throw new DOMException("This model reads and writes text, without tools", "NotSupportedError");
      const first = initialPrompts === undefined ? [] : canonicalPrompt(initialPrompts, true);
      const report = progressMonitor(monitor);
      report(0);
      monitors.add(report);
      try {
        const ready = await unlessAborted(load(), signal);
        report(1);
        const session = new LanguageModel(ready, sampling);
        if (first.length > 0) await session.append(first, { signal });
        return session;
      } finally {
        monitors.delete(report);
      }
    },
  };
}

function progressMonitor(monitor: LanguageModelCreateOptions["monitor"]): (loaded: number) => void {
  const target = new EventTarget();
  let last = -1;
  // Node has no ProgressEvent, so its fields are put on an Event.
  monitor?.(target as CreateMonitor);
  return (loaded) => {
    if (loaded <= last) return;
    last = loaded;
    target.dispatchEvent(Object.assign(new Event("downloadprogress"), { loaded, total: 1, lengthComputable: true }));
  };
}
