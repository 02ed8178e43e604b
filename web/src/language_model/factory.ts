// Chrome's Prompt API with an engine of this package: createLanguageModel returns an object with the interface of
// window.LanguageModel.

import type { EngineApi } from "../api/engine_api.js";
import type { LoadProgress } from "../load.js";
import { unlessAborted } from "../runtime/abort.js";
import { bundleAddress } from "../runtime/source.js";
import { cache } from "../store/cache.js";
import { domError } from "./dom_errors.js";
import type { LanguageModelPrompt } from "./prompt.js";
import { canonicalPrompt } from "./prompt.js";
import type { SamplingOptions } from "./sampling.js";
import { readSampling } from "./sampling.js";
import { LanguageModel, checkThinking } from "./session.js";
import type { LanguageModelTool } from "./tools.js";
import { checkTools } from "./tools.js";

export type Availability = "unavailable" | "downloadable" | "downloading" | "available";

export interface LanguageModelExpected {
  readonly type: string;
  readonly languages?: readonly string[] | undefined;
}

export interface LanguageModelCreateCoreOptions extends SamplingOptions {
  readonly expectedInputs?: readonly LanguageModelExpected[] | undefined;
  readonly expectedOutputs?: readonly LanguageModelExpected[] | undefined;
  readonly tools?: readonly LanguageModelTool[] | undefined;
  /** Extension: switches the reasoning of a model on or off, whose chat template has the variable enable_thinking. */
  readonly thinking?: boolean | undefined;
}

export interface LanguageModelCreateOptions extends LanguageModelCreateCoreOptions {
  readonly initialPrompts?: LanguageModelPrompt | undefined;
  /** Ends the creation and, once the session is created, destroys it. */
  readonly signal?: AbortSignal | undefined;
  readonly monitor?: ((monitor: CreateMonitor) => void) | undefined;
}

/** Dispatches "downloadprogress" events, with ``loaded`` from 0 to 1. */
export interface CreateMonitor extends EventTarget {
  addEventListener(
    type: "downloadprogress",
    listener: (event: ProgressEvent) => void,
    options?: AddEventListenerOptions | boolean,
  ): void;
  addEventListener(...args: Parameters<EventTarget["addEventListener"]>): void;
}

/** The interface of window.LanguageModel. */
export interface LanguageModelFactory {
  availability(options?: LanguageModelCreateCoreOptions): Promise<Availability>;
  create(options?: LanguageModelCreateOptions): Promise<LanguageModel>;
}

export type EngineLoader = (options: { readonly onProgress: (progress: LoadProgress) => void }) => Promise<EngineApi>;

export interface LanguageModelOptions {
  /** The address of the bundle that the loader loads, so that availability() can look for it in the browser's store. */
  readonly bundle?: string | URL | undefined;
}

/** ``engine`` is a loaded engine, or a function that loads one, which the first create() calls. */
export function createLanguageModel(
  engine: EngineApi | EngineLoader,
  { bundle }: LanguageModelOptions = {},
): LanguageModelFactory {
  let loading: Promise<EngineApi> | null = typeof engine === "function" ? null : Promise.resolve(engine);
  let loaded: EngineApi | null = typeof engine === "function" ? null : engine;
  const monitors = new Set<(loaded: number) => void>();
  const load = (): Promise<EngineApi> =>
    (loading ??= (engine as EngineLoader)({
      onProgress: ({ loadedBytes, totalBytes }) => {
        for (const monitor of monitors) monitor(totalBytes === 0 ? 0 : loadedBytes / totalBytes);
      },
    }).then(
      (ready) => {
        loaded = ready;
        return ready;
      },
      (error: unknown) => {
        // The next create() tries again.
        loading = null;
        throw domError(error);
      },
    ));
  return {
    async availability(options = {}) {
      const lacksTools = (options.tools ?? []).length > 0 && loaded?.info.tools === false;
      const lacksThinking = options.thinking !== undefined && loaded?.info.thinking === false;
      const lacksEyes = expectsImages(options) && loaded?.info.images === false;
      if (!isSupported(options) || lacksTools || lacksThinking || lacksEyes) return "unavailable";
      if (loaded !== null) return "available";
      if (loading !== null) return "downloading";
      return bundle !== undefined && (await isStored(bundle)) ? "available" : "downloadable";
    },
    async create(options = {}) {
      const { signal, monitor, initialPrompts, tools = [], thinking } = options;
      signal?.throwIfAborted();
      const sampling = readSampling(options);
      checkTools(tools);
      checkThinking(thinking);
      if (!isSupported(options))
        throw new DOMException("This model reads and writes text, and reads images if it sees", "NotSupportedError");
      const sees = expectsImages(options);
      // Check them before the download.
      if (initialPrompts !== undefined) canonicalPrompt(initialPrompts, true, sees);
      const report = progressMonitor(monitor);
      report(0);
      monitors.add(report);
      try {
        const ready = await unlessAborted(load(), signal);
        report(1);
        checkThinking(thinking, ready.info);
        if (tools.length > 0 && !ready.info.tools)
          throw new DOMException(`The model ${ready.info.model} cannot call tools`, "NotSupportedError");
        if (sees && !ready.info.images)
          throw new DOMException(`The model ${ready.info.model} sees no images`, "NotSupportedError");
        const session = new LanguageModel(ready, sampling, [...tools], thinking, sees);
        if (initialPrompts !== undefined) await session.append(initialPrompts, { signal });
        signal?.throwIfAborted();
        signal?.addEventListener("abort", () => {
          session.destroy(signal.reason);
        });
        return session;
      } finally {
        monitors.delete(report);
      }
    },
  };
}

function expectsImages({ expectedInputs = [] }: LanguageModelCreateCoreOptions): boolean {
  return expectedInputs.some(({ type }) => type === "image");
}

/** The types "tool-call" and "tool-response" are supported only together with tools. */
function isSupported({
  expectedInputs = [],
  expectedOutputs = [],
  tools = [],
}: LanguageModelCreateCoreOptions): boolean {
  const hasTools = tools.length > 0;
  return (
    expectedInputs.every(
      ({ type }) =>
        type === "text" || type === "image" || (hasTools && (type === "tool-response" || type === "tool-call")),
    ) && expectedOutputs.every(({ type }) => type === "text" || (hasTools && type === "tool-call"))
  );
}

/** Whether the complete bundle is in the browser's store, so that loading it needs no network. */
async function isStored(bundle: string | URL): Promise<boolean> {
  const { href } = bundleAddress(bundle);
  return (await cache.list()).some(({ url, complete }) => url === href && complete);
}

function progressMonitor(monitor: LanguageModelCreateOptions["monitor"]): (loaded: number) => void {
  const target = new EventTarget();
  let last = -1;
  // Node has no ProgressEvent, so its fields are added to an Event.
  monitor?.(target as CreateMonitor);
  return (loaded) => {
    if (loaded <= last) return;
    last = loaded;
    target.dispatchEvent(Object.assign(new Event("downloadprogress"), { loaded, total: 1, lengthComputable: true }));
  };
}
