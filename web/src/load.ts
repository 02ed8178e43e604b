// Loading: the addresses of bundles flow in; of the first that this device can run, a backend and a tokenizer flow out, with progress on the way.

import { readParams, shown } from "./api/params.js";
import type { Backend, Opening } from "./backend.js";
import { DeviceError, RequestError } from "./errors.js";
import type { GrammarModule } from "./grammar/index.js";
import { LOAD_START } from "./load_progress.js";
import type { OnnxOptions } from "./onnx/options.js";
import { openOnnx } from "./onnx_backend.js";
import { LOAD_OPTIONS } from "./options.js";
import { unlessAborted } from "./runtime/abort.js";
import type { Bundle } from "./runtime/bundle.js";
import { bundleId, filesToLoad } from "./runtime/bundle.js";
import { chooseActivation, findAdapter, requireSecureContext } from "./runtime/device.js";
import { planExport } from "./runtime/export_memory.js";
import type { AnyManifest } from "./runtime/any_manifest.js";
import { isExport } from "./runtime/any_manifest.js";
import { loadManifest } from "./runtime/load_manifest.js";
import type { MemoryOptions, MemoryPlan } from "./runtime/memory_plan.js";
import { planMemory } from "./runtime/memory_plan.js";
import { readFile } from "./runtime/read_file.js";
import type { OnBytes, Source } from "./runtime/source.js";
import { httpSource } from "./runtime/source.js";
import type { TrustOptions } from "./runtime/trust.js";
import type { BundleStore } from "./store/bundle_store.js";
import type { CrossOriginStorage } from "./store/cross_origin.js";
import { crossOriginSource } from "./store/cross_origin.js";
import type { SessionStorage } from "./store/session_store.js";
import type { StoredSource } from "./store/stored_source.js";
import { storedSource } from "./store/stored_source.js";
import { Tokenizer } from "./text/tokenizer.js";
import { openWebGpu } from "./webgpu_backend.js";

/** Of a bundle's folder on a web server, or whatever else its files come from. */
export type BundleAddress = string | URL | Source;

/**
 * "manifest": it is read. "download": bytes have to come over the network still, here or in another tab. "upload": all others come from the
 * store and go to the device. Kernels compile meanwhile, so both counts move at once. "self-test": this device's answers are compared with the
 * reference's. "ready": the engine is there.
 */
export interface LoadProgress {
  readonly phase: "manifest" | "download" | "upload" | "self-test" | "ready";
  /** Of weights and tokenizer, from wherever. It goes back where a file proves damaged and is fetched again. */
  readonly loadedBytes: number;
  /** Of these, what was in the store. */
  readonly storedBytes: number;
  readonly totalBytes: number;
  readonly compiledKernels: number;
  readonly totalKernels: number;
}

export interface LoadOptions extends TrustOptions, MemoryOptions {
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Where files are kept: in the browser's store, nowhere, or in one of its own. True where the bundle is given by its address and the browser can. */
  readonly store?: boolean | BundleStore | undefined;
  /** How files are shared through the browser's Cross-Origin Storage, if it has one. True if the bundle is given by its address. */
  readonly crossOriginStorage?: CrossOriginStorage | undefined;
  /** What bundles in ONNX's form are run with. */
  readonly onnx?: OnnxOptions | undefined;
  /** `grammar` of "@nearfar/web/grammar", for scripts that cannot import it when a grammar is first needed, such as service workers. */
  readonly grammar?: GrammarModule | undefined;
}

export interface Loaded {
  readonly manifest: AnyManifest;
  /** As `bundleId` gives it. */
  readonly id: string;
  /** Why this bundle was taken. */
  readonly reason: string;
  readonly backend: Backend;
  readonly tokenizer: Tokenizer;
  /** The text of tokenizer.json. */
  readonly tokenizerJson: string;
  /** As LoadOptions has it. */
  readonly grammar?: GrammarModule | undefined;
  /** Of weights and tokenizer. */
  readonly totalBytes: number;
  /** The bundle once more, on a new device, as after the old one was lost. Files come from the store where they are kept. */
  reopen(signal: AbortSignal): Promise<Backend>;
  /** Where sessions are saved; in the browser's file system where it is not said. */
  readonly sessions?: SessionStorage | undefined;
}

/** A bundle whose manifest is read. Whoever opened it closes it. */
interface Candidate extends Bundle<AnyManifest> {
  readonly address: BundleAddress;
  readonly stored: StoredSource | null;
}

/** An aborted load has this long to free the device and the store's locks before its caller goes on, in milliseconds; usually it takes one or two. */
const ABORT_GRACE_MS = 100;

/**
 * Of several bundles, the first for WebGPU that this device can run; where there is none, the first in ONNX's form. Throws RequestError for options that
 * there are not, BundleError, StorageError, the signal's reason, or DeviceError, which for several says of each why it does not run.
 */
export async function load(given: BundleAddress | readonly BundleAddress[], wanted: LoadOptions): Promise<Loaded> {
  const options = readParams(wanted, LOAD_OPTIONS);
  requireSecureContext();
  const discard = ({ backend }: Loaded): void => {
    backend.destroy();
  };
  return unlessAborted(loadFirst(given, options), options.signal, discard, ABORT_GRACE_MS);
}

async function loadFirst(given: BundleAddress | readonly BundleAddress[], options: LoadOptions): Promise<Loaded> {
  const addresses = Array.isArray(given) ? (given as readonly BundleAddress[]) : [given as BundleAddress];
  if (addresses.length === 0)
    throw new RequestError("The list of bundles is empty; give the address of at least one", { param: "bundle" });
  const signal = options.signal ?? new AbortController().signal;
  const opened: Candidate[] = [];
  const refusals: string[] = [];
  const tryNext = async (candidate: Candidate, why: string): Promise<Loaded | null> => {
    try {
      return await loadCandidate(candidate, why, addresses.length > 1, signal, options);
    } catch (error) {
      if (!(error instanceof DeviceError) || addresses.length === 1) throw error;
      refusals.push(error.message);
      return null;
    }
  };
  const reason = (name: string): string =>
    [addresses.length === 1 ? "it is the only bundle given" : name, ...refusals].join("; ");
  try {
    for (const address of addresses) {
      const candidate = await openCandidate(address, signal, options);
      opened.push(candidate);
      if (isExport(candidate.manifest)) continue;
      const loaded = await tryNext(candidate, reason("this device runs it through WebGPU"));
      if (loaded !== null) return loaded;
    }
    const hasWebGpu = refusals.length > 0;
    for (const candidate of opened.filter(({ manifest }) => isExport(manifest))) {
      const loaded = await tryNext(
        candidate,
        reason(hasWebGpu ? "no bundle for WebGPU runs here" : "no bundle for WebGPU was given"),
      );
      if (loaded !== null) return loaded;
    }
  } finally {
    for (const { stored } of opened) await stored?.close().catch(() => undefined);
  }
  throw new DeviceError(`None of the ${addresses.length} bundles runs here: ${refusals.join("; ")}`, { refusals });
}

async function openCandidate(address: BundleAddress, signal: AbortSignal, options: LoadOptions): Promise<Candidate> {
  options.onProgress?.(LOAD_START);
  const plain = sourceOf(address);
  const stored = await storedSource(plain, options.store ?? isAddress(address), signal);
  const source = crossOriginSource(stored ?? plain, options.crossOriginStorage ?? isAddress(address));
  try {
    return { address, stored, source, manifest: await loadManifest(source, signal) };
  } catch (error) {
    await stored?.close().catch(() => undefined);
    throw error;
  }
}

/** ``looksFirst``: find out before the download whether the device could run it at all. */
async function loadCandidate(
  candidate: Candidate,
  reason: string,
  looksFirst: boolean,
  signal: AbortSignal,
  options: LoadOptions,
): Promise<Loaded> {
  const { address, stored, manifest } = candidate;
  if (looksFirst) await planManifest(manifest, options);
  const loaded = await loadFrom(candidate, signal, options);
  // A store that could not note it has no worse effect than that the next load asks the network.
  await stored?.finish().catch(() => undefined);
  const reopen = async (until: AbortSignal): Promise<Backend> => {
    const again = await storedSource(sourceOf(address), options.store ?? isAddress(address), until);
    try {
      // The adapter went with its device.
      const others = { ...options, adapter: undefined };
      const source = crossOriginSource(again ?? sourceOf(address), options.crossOriginStorage ?? isAddress(address));
      return await openBackend({ manifest, source }, others, {
        signal: until,
        onBytes: nothing,
        onKernel: nothing,
        onTest: nothing,
      });
    } finally {
      await again?.close().catch(() => undefined);
    }
  };
  return { ...loaded, grammar: options.grammar, reason, reopen };
}

/** What a bundle would take, by its manifest alone. Throws RequestError, BundleError, DeviceError, or the signal's reason. */
export async function plan(address: BundleAddress, wanted: LoadOptions): Promise<MemoryPlan> {
  const options = readParams(wanted, LOAD_OPTIONS);
  const { signal = new AbortController().signal } = options;
  const planned = loadManifest(sourceOf(address), signal).then((manifest) => planManifest(manifest, options));
  return unlessAborted(planned, signal);
}

async function planManifest(manifest: AnyManifest, options: LoadOptions): Promise<MemoryPlan> {
  if (isExport(manifest)) return planExport(manifest, options);
  const adapter = options.adapter ?? (await findAdapter(options.gpu));
  return planMemory(manifest, chooseActivation(manifest, adapter.features), options);
}

async function openBackend(
  { manifest, source }: Bundle<AnyManifest>,
  options: LoadOptions,
  opening: Opening,
): Promise<Backend> {
  return isExport(manifest)
    ? openOnnx({ manifest, source }, options, opening)
    : openWebGpu({ manifest, source }, options, opening);
}

async function loadFrom(
  opened: Candidate,
  signal: AbortSignal,
  options: LoadOptions,
): Promise<Omit<Loaded, "reopen" | "reason">> {
  const { manifest, stored } = opened;
  let progress = LOAD_START;
  const report = (change: Partial<LoadProgress>): void => {
    progress = { ...progress, ...change };
    options.onProgress?.(progress);
  };
  const totalBytes = filesToLoad(manifest).reduce((sum, { size }) => sum + size, 0);
  let downloads = stored === null || (await stored.begin(manifest)) > 0;
  const onBytes: OnBytes = (count, origin) => {
    if (origin === "network") downloads = true;
    const loadedBytes = progress.loadedBytes + count;
    const storedBytes = progress.storedBytes + (origin === "store" ? count : 0);
    report({ loadedBytes, storedBytes, phase: downloads && loadedBytes < totalBytes ? "download" : "upload" });
  };
  report({ phase: downloads ? "download" : "upload", totalBytes });
  // A missing file ends the load before kernels compile, not when its turn comes.
  await Promise.all(filesToLoad(manifest).map(async (file) => opened.source.check?.(file, signal)));
  const onKernel = (compiledKernels: number, totalKernels: number): void => {
    report({ compiledKernels, totalKernels });
  };
  // Where one fails, the other stops.
  const failed = new AbortController();
  const either = AbortSignal.any([signal, failed.signal]);
  const stop = (error: unknown): never => {
    failed.abort(error);
    throw error;
  };
  const onTest = (): void => {
    report({ phase: "self-test" });
  };
  const [backend, tokenizer] = await Promise.allSettled([
    openBackend(opened, options, { signal: either, onBytes, onKernel, onTest }).catch(stop),
    loadTokenizer(opened, either, onBytes).catch(stop),
  ]);
  if (backend.status === "fulfilled" && tokenizer.status === "fulfilled") {
    report({ phase: "ready" });
    return { manifest, id: await bundleId(manifest), backend: backend.value, ...tokenizer.value, totalBytes };
  }
  if (backend.status === "fulfilled") backend.value.destroy();
  throw failed.signal.reason as Error;
}

function isAddress(address: BundleAddress): address is string | URL {
  return typeof address === "string" || address instanceof URL;
}

function sourceOf(address: BundleAddress): Source {
  if (isAddress(address)) return httpSource(address);
  const { open } = Object(address) as Partial<Source>;
  if (typeof open !== "function")
    throw new RequestError(`The bundle is ${shown(address)}, it must be an address or a source`, { param: "bundle" });
  return address;
}

function nothing(): void {
  // Bytes that come again have been counted.
}

async function loadTokenizer(
  { manifest, source }: Bundle<AnyManifest>,
  signal: AbortSignal,
  onBytes: OnBytes,
): Promise<Pick<Loaded, "tokenizer" | "tokenizerJson">> {
  const { file } = manifest.tokenizer;
  const entry = manifest.files.find((candidate) => candidate.file === file);
  if (entry === undefined) throw new Error(file);
  const tokenizerJson = new TextDecoder().decode(await readFile(source, entry, signal, onBytes));
  return { tokenizer: new Tokenizer(tokenizerJson, manifest.tokenizer), tokenizerJson };
}
