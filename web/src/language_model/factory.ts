// Chrome's Prompt API with an engine of this package: createLanguageModel returns an object with the interface of
// window.LanguageModel.

import type { EngineApi } from "../api/engine_api.js";
import type { LoadProgress } from "../load_options.js";
import { unlessAborted } from "../runtime/abort.js";
import { bundleAddress } from "../runtime/source.js";
import { BundleStore } from "../store/bundle_store.js";
import { cache } from "../store/cache.js";
import { domError } from "./dom_errors.js";
import type { LanguageModelPrompt } from "./prompt.js";
import type { ExpectedMedia } from "./prompt.js";
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
  /**
   * The address of the bundle that the loader loads. With it, availability() looks for the bundle in the browser's store,
   * and knows from its manifest whether the model reads images and audio before it is loaded.
   */
  readonly bundle?: string | URL | undefined;
  /** Whether the loader gives its engine a transcriber, with which any model reads audio. */
  readonly transcriber?: boolean | undefined;
}

/** ``engine`` is a loaded engine, or a function that loads one, which the first create() calls. */
export function createLanguageModel(
  engine: EngineApi | EngineLoader,
  { bundle, transcriber = false }: LanguageModelOptions = {},
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
  /** The first kind of media that the session expects and the model does not read, as far as that is known. */
  const lack = async ({ image, audio }: ExpectedMedia): Promise<keyof ExpectedMedia | null> => {
    const isKnown = loaded !== null || bundle === undefined || !(image || audio);
    const of: Abilities = loaded?.info ?? (isKnown ? UNKNOWN : await abilities(bundle));
    // Before the load, what is not known may be so.
    const { images = loaded === null, sound = loaded === null } = of;
    if (image && !images) return "image";
    return audio && !sound && (loaded !== null || !transcriber) ? "audio" : null;
  };
  return {
    async availability(options = {}) {
      const lacksTools = (options.tools ?? []).length > 0 && loaded?.info.tools === false;
      const lacksThinking = options.thinking !== undefined && loaded?.info.thinking === false;
      if (!isSupported(options) || lacksTools || lacksThinking || (await lack(expectedMedia(options))) !== null)
        return "unavailable";
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
        throw new DOMException(
          "This model reads and writes text, and reads images if it sees and audio if it hears",
          "NotSupportedError",
        );
      const expected = expectedMedia(options);
      const requireMedia = async (): Promise<void> => {
        const lacking = await lack(expected);
        if (lacking !== null)
          throw new DOMException(
            `The model ${loaded?.info.model ?? ""} reads no ${lacking === "image" ? "images" : lacking}`,
            "NotSupportedError",
          );
      };
      // Check them before the download.
      if (initialPrompts !== undefined) canonicalPrompt(initialPrompts, true, expected);
      await unlessAborted(requireMedia(), signal);
      const report = progressMonitor(monitor);
      report(0);
      monitors.add(report);
      try {
        const ready = await unlessAborted(load(), signal);
        report(1);
        checkThinking(thinking, ready.info);
        if (tools.length > 0 && !ready.info.tools)
          throw new DOMException(`The model ${ready.info.model} cannot call tools`, "NotSupportedError");
        await requireMedia();
        const session = new LanguageModel(ready, sampling, [...tools], thinking, expected, signal);
        if (initialPrompts !== undefined) await session.append(initialPrompts, { signal });
        signal?.throwIfAborted();
        return session;
      } finally {
        monitors.delete(report);
      }
    },
  };
}

function expectedMedia({ expectedInputs = [] }: LanguageModelCreateCoreOptions): ExpectedMedia {
  const expects = (media: keyof ExpectedMedia): boolean => expectedInputs.some(({ type }) => type === media);
  return { image: expects("image"), audio: expects("audio") };
}

interface Abilities {
  readonly images?: boolean;
  readonly sound?: boolean;
}

const UNKNOWN: Abilities = {};

/** From the manifest of a bundle that is not loaded: the stored one, or its server's. Nothing if it cannot be read. */
async function abilities(bundle: string | URL): Promise<Abilities> {
  const base = bundleAddress(bundle);
  const address = new URL("manifest.json", base);
  address.search = base.search;
  try {
    const stored = await (await BundleStore.open())?.manifest(base.href);
    const response = stored ? new Response(stored) : await fetch(address, { cache: "no-cache" });
    if (!response.ok) return UNKNOWN;
    const { images, sounds } = (await response.json()) as { readonly images?: unknown; readonly sounds?: unknown };
    return { images: Boolean(images), sound: Boolean(sounds) };
  } catch {
    return UNKNOWN;
  }
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
        ["text", "image", "audio"].includes(type) || (hasTools && (type === "tool-response" || type === "tool-call")),
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
