// The options of a load, and its progress.

import type { Check, Checks } from "./api/params.js";
import { check, isA, isObject, readParams, signal } from "./api/params.js";
import type { EngineApi } from "./api/engine_api.js";
import type { EncodersModule } from "./encoders/index.js";
import { RequestError } from "./errors.js";
import type { GrammarModule } from "./grammar/index.js";
import type { ImagesModule } from "./images/index.js";
import type { OnnxOptions } from "./onnx/options.js";
import type { PrefixOptions } from "./prefixes/index.js";
import type { DeviceReport } from "./probe/schema.js";
import type { MemoryOptions } from "./runtime/memory_plan.js";
import type { Source } from "./runtime/source.js";
import type { TrustOptions } from "./runtime/trust.js";
import type { BundleStore } from "./store/bundle_store.js";
import type { CrossOriginStorage } from "./store/cross_origin.js";

/** The address of a bundle's folder on a web server, or another source of its files. */
export type BundleAddress = string | URL | Source;

/**
 * "manifest": the manifest is being read. "download": bytes are still missing and come over the network, in this tab or
 * in another one. "upload": all remaining bytes come from the store and are sent to the device. Kernels compile at the
 * same time, so both counts advance together. "self-test": this device's results are compared with the reference.
 * "ready": the engine is ready.
 */
export interface LoadProgress {
  readonly phase: "manifest" | "download" | "upload" | "self-test" | "ready";
  /**
   * Bytes of the weights and the tokenizer, from any origin. The number decreases if a file is damaged and is fetched
   * again.
   */
  readonly loadedBytes: number;
  /** The part of ``loadedBytes`` that was in the store. */
  readonly storedBytes: number;
  readonly totalBytes: number;
  readonly compiledKernels: number;
  readonly totalKernels: number;
  /** Completed runs of the self-test, one for each set of variants that is tried; undefined before the first one. */
  readonly selfTestRuns?: number | undefined;
}

/** The progress of a load before anything has happened. */
export const LOAD_START: LoadProgress = {
  phase: "manifest",
  loadedBytes: 0,
  storedBytes: 0,
  totalBytes: 0,
  compiledKernels: 0,
  totalKernels: 0,
};

export interface LoadOptions extends TrustOptions, MemoryOptions {
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
  /**
   * Where files are stored: in the browser's default store, nowhere, or in a store of your own. By default true if the
   * bundle is an address and the browser has storage.
   */
  readonly store?: boolean | BundleStore | undefined;
  /**
   * The sharing of files through the browser's Cross-Origin Storage, if it has one. By default true if the bundle is an
   * address.
   */
  readonly crossOriginStorage?: CrossOriginStorage | undefined;
  /**
   * What guesses the next tokens, of which the model checks several at once, so that answers take fewer of its steps and
   * are the same: the bundle of a smaller model with the same tokenizer, "heads" for the model's own heads if its bundle
   * has them, or "ngram" for the tokens that followed the last ones earlier in the text. By default as "ngram", but only
   * while it pays on this device; false for never. Imports drafts.js.
   */
  readonly draft?: BundleAddress | false | undefined;
  /**
   * `probe` of probe.js, or a function that returns its report: a bundle for WebGPU that it refuses is not loaded. Else
   * its ``fit`` is used, and its memory as ``memoryBudget``, unless these are given.
   */
  readonly probe?:
    | ((
        address: BundleAddress,
        options: Pick<LoadOptions, "gpu" | "signal">,
      ) => Promise<Pick<DeviceReport, "refusals" | "fit">>)
    | undefined;
  /**
   * The address of the catalog of a published site, of its folder, or "hf:OWNER/NAME". The bundle is then the name of a
   * model, of which the best bundle that fits this device is loaded. Imports catalog.js.
   */
  readonly catalog?: string | URL | undefined;
  /**
   * Whether the keys and values of system messages stay on this device across reloads, and their budget; by default true
   * if files are stored. Imports prefixes.js for the first chat with one.
   */
  readonly prefixes?: boolean | PrefixOptions | undefined;
  /** The ONNX Runtime that runs ONNX bundles. */
  readonly onnx?: OnnxOptions | undefined;
  /** `encoders` of "@nearfar/web/encoders". Needed by scripts that cannot import it later, such as service workers. */
  readonly encoders?: EncodersModule | undefined;
  /** `grammar` of "@nearfar/web/grammar". Needed by scripts that cannot import it later, such as service workers. */
  readonly grammar?: GrammarModule | undefined;
  /** `images` of "@nearfar/web/images". Needed by scripts that cannot import it later, such as service workers. */
  readonly images?: ImagesModule | undefined;
  /** An engine of a Whisper, here or in a worker, that writes down the recordings of chats. */
  readonly transcriber?: Pick<EngineApi, "transcribe"> | undefined;
}

const aFunction = check("a function", (value) => typeof value === "function");

/** An unknown option, or a value of the wrong type, is refused before anything is done. */
const LOAD_OPTIONS: Checks = {
  onProgress: aFunction,
  probe: aFunction,
  signal,
  store: check("true, false or a BundleStore", (value) => typeof value === "boolean" || isObject(value)),
  crossOriginStorage: check(
    'true, false, "*" or a list of origins',
    (value) => typeof value === "boolean" || value === "*" || isA("string[]", value),
  ),
  draft: check(
    'an address, a source, "heads", "ngram" or false',
    (value) => typeof value === "string" || isObject(value) || value === false,
  ),
  draftTokens: "integer 1..",
  catalog: check("an address", isAddress),
  prefixes: "boolean or object",
  onnx: "object",
  encoders: "object",
  grammar: "object",
  images: "object",
  transcriber: "object",
  gpu: "object",
  adapter: "object",
  selfTest: "=first-load|always|never",
  selfTestLimitMs: "number 0..",
  tuning: check("true, false or a TuningModule", (value) => typeof value === "boolean" || "measure" in Object(value)),
  notes: "object",
  fit: "object",
  maxSequences: "integer 1..",
  maxBatchTokens: "integer 1..",
  pages: "integer 1..",
  maxAdapters: "integer 1..",
  stateSnapshots: "integer 0..",
  prefillChunk: "integer 1..",
  memoryBudget: "number 0<..",
  expertMemory: "number 0<..",
} satisfies Record<keyof LoadOptions, Check>;

/** The default number of drafts of a sequence that a step checks. */
const DRAFT_TOKENS = 4;

/** The options with the number of drafts, unless it is the default. Throws RequestError. */
export function optionsOf(unchecked: LoadOptions): LoadOptions {
  const options = readParams(unchecked, LOAD_OPTIONS);
  if (options.draft) return { draftTokens: DRAFT_TOKENS, ...options };
  if (options.draftTokens === undefined) return options.draft === false ? { ...options, draftTokens: 0 } : options;
  throw new RequestError('draftTokens needs a draft; give an address, "ngram" or "heads"', { param: "draftTokens" });
}

export function isAddress(address: unknown): address is string | URL {
  return typeof address === "string" || address instanceof URL;
}
