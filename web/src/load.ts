// Loads the first of several bundles that this device can run: opens its backend and its tokenizer, and reports
// progress.

import { shown } from "./api/params.js";
import type { Backend, Opening } from "./backend.js";
import { openWebGpu } from "./backend.js";
import type { EncodersModule } from "./encoders/index.js";
import type { Planner } from "./drafts/memory.js";
import type { PrefixHost, PrefixOptions } from "./prefixes/index.js";
import { DeviceError, RequestError } from "./errors.js";
import type { GrammarModule } from "./grammar/index.js";
import type { ImagesModule } from "./images/index.js";
import type { AudioModule } from "./audio/index.js";
import type { BundleAddress, LoadOptions, LoadProgress } from "./load_options.js";
import { LOAD_START, isAddress, optionsOf } from "./load_options.js";
import { openOnnx, planOnnx } from "./onnx_backend.js";
import { unlessAborted } from "./runtime/abort.js";
import type { AnyManifest } from "./runtime/any_manifest.js";
import { isExport } from "./runtime/any_manifest.js";
import type { Bundle } from "./runtime/bundle.js";
import { bundleId } from "./runtime/bundle.js";
import { filesToLoad } from "./shared/files_to_load.js";
import { chooseActivation, findAdapter, requireSecureContext } from "./runtime/device.js";
import { importAudio, importCatalog, importDrafts, importEncoders, importImages } from "./runtime/import_later.js";
import { loadManifest } from "./runtime/load_manifest.js";
import type { Manifest } from "./runtime/manifest.js";
import type { MemoryPlan } from "./runtime/memory_plan.js";
import { planMemory } from "./runtime/memory_plan.js";
import { readFile } from "./runtime/read_file.js";
import { withoutHeads } from "./runtime/plan.js";
import type { Bytes, OnBytes, Source } from "./runtime/source.js";
import { httpSource } from "./runtime/source.js";
import { crossOriginSource } from "./store/cross_origin.js";
import type { SessionStorage } from "./store/session_store.js";
import type { StoredSource } from "./store/stored_source.js";
import { storedSource } from "./store/stored_source.js";
import { Tokenizer } from "./text/tokenizer.js";

export interface Loaded {
  readonly manifest: AnyManifest;
  /** The result of `bundleId`. */
  readonly id: string;
  /** Why this bundle was chosen. */
  readonly reason: string;
  readonly backend: Backend;
  readonly tokenizer: Tokenizer;
  /** The text of tokenizer.json. */
  readonly tokenizerJson: string;
  readonly grammar?: GrammarModule | undefined;
  /** Null for a model that generates text. */
  readonly encoders?: EncodersModule | null | undefined;
  /** Null for a model that sees no pictures and does not hear. */
  readonly images?: ImagesModule | null | undefined;
  /** Null for a model that transcribes no sound. */
  readonly audio?: AudioModule | null | undefined;
  readonly transcriber?: LoadOptions["transcriber"];
  /** False if no prefixes are kept. */
  readonly prefixes?: false | (PrefixOptions & Pick<PrefixHost, "read">) | undefined;
  /** The size of the weights and the tokenizer. */
  readonly totalBytes: number;
  /**
   * Opens the bundle again on a new device, for example after the old one was lost. Stored files come from the store.
   */
  reopen(signal: AbortSignal): Promise<Backend>;
  /** Where sessions are saved; by default in the browser's file system. */
  readonly sessions?: SessionStorage | undefined;
}

/** A bundle whose manifest has been read. The function that opened it closes it. */
interface Candidate extends Bundle<AnyManifest> {
  readonly address: BundleAddress;
  readonly stored: StoredSource | null;
}

/**
 * The time in milliseconds that an aborted load has to free the device and the store's locks before its caller
 * continues. Usually one or two are enough.
 */
const ABORT_GRACE_MS = 100;

/**
 * Load the first WebGPU bundle that this device can run, otherwise the first ONNX bundle. Throws RequestError
 * for unknown options, BundleError, StorageError, the signal's reason, or DeviceError. For several bundles, the
 * DeviceError states for each bundle why it does not run.
 */
export async function load(bundles: BundleAddress | readonly BundleAddress[], unchecked: LoadOptions): Promise<Loaded> {
  const options = optionsOf(unchecked);
  requireSecureContext();
  const discard = ({ backend }: Loaded): void => {
    backend.destroy();
  };
  return unlessAborted(loadFirst(bundles, options), options.signal, discard, ABORT_GRACE_MS);
}

async function loadFirst(bundles: BundleAddress | readonly BundleAddress[], options: LoadOptions): Promise<Loaded> {
  const { addresses, checkManifest } = await choose(bundles, options);
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
      const candidate = await openCandidate(address, signal, options, checkManifest);
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

/** ``checkManifest``: what a catalog says of manifests. */
interface Chosen {
  readonly addresses: readonly BundleAddress[];
  readonly checkManifest?: (address: BundleAddress, manifest: Bytes) => Promise<void>;
}

async function choose(bundles: BundleAddress | readonly BundleAddress[], options: LoadOptions): Promise<Chosen> {
  if (options.catalog !== undefined) return (await importCatalog()).chooseAddresses(bundles, options.catalog, options);
  return { addresses: [bundles].flat() };
}

async function openCandidate(
  address: BundleAddress,
  signal: AbortSignal,
  options: LoadOptions,
  checkManifest?: Chosen["checkManifest"],
): Promise<Candidate> {
  options.onProgress?.(LOAD_START);
  const plain = sourceOf(address);
  const stored = await storedSource(plain, options.store ?? isAddress(address), signal);
  const source = crossOriginSource(stored ?? plain, options.crossOriginStorage ?? isAddress(address));
  try {
    return {
      address,
      stored,
      source,
      manifest: await loadManifest(source, signal, (bytes) => checkManifest?.(address, bytes)),
    };
  } catch (error) {
    await stored?.close().catch(() => undefined);
    throw error;
  }
}

/** The options with what a probe says of them. Throws DeviceError if it refuses the bundle. */
async function probed(address: BundleAddress, signal: AbortSignal, given: LoadOptions): Promise<LoadOptions> {
  const { probe, gpu } = given;
  const { refusals = [], fit: found } = (await probe?.(address, { gpu, signal })) ?? {};
  for (const { message, ...details } of refusals) throw new DeviceError(message, { step: "probe", ...details });
  const fit = given.fit ?? found ?? undefined;
  return { memoryBudget: fit?.memory_budget ?? undefined, ...given, fit };
}

/** ``checkFirst``: check before the download whether the device can run the bundle. */
async function loadCandidate(
  candidate: Candidate,
  reason: string,
  checkFirst: boolean,
  signal: AbortSignal,
  given: LoadOptions,
): Promise<Loaded> {
  const { address, stored, manifest } = candidate;
  const options = isExport(manifest) ? given : await probed(address, signal, given);
  const hasSenses = hasPlan(manifest, "vision") || hasPlan(manifest, "hearing");
  const images = hasSenses ? (options.images ?? (await importImages())) : null;
  const { vocab_size: vocabSize } = manifest.spec;
  if (manifest.images !== null) images?.requireImages(manifest.images, vocabSize);
  if (manifest.sounds !== null) images?.requireSounds(manifest.sounds, manifest.images, vocabSize);
  const audio = (manifest.speech === null && manifest.ctc === null) || isExport(manifest) ? null : await importAudio();
  const loaded = await withDraft(manifest, options, signal, async (draft) => {
    if (checkFirst) await planManifest(manifest, draft, options);
    return loadFrom(candidate, draft, signal, options);
  });
  const makesVectors = manifest.embedding !== null || manifest.classifier !== null;
  const encoders = makesVectors ? (options.encoders ?? (await importEncoders())) : null;
  // If the store cannot record this, the next load only checks the network again.
  await stored?.finish().catch(() => undefined);
  const reopen = async (until: AbortSignal): Promise<Backend> => {
    const again = await storedSource(sourceOf(address), options.store ?? isAddress(address), until);
    try {
      // A lost device takes its adapter with it.
      const others = { ...options, adapter: undefined };
      const source = crossOriginSource(again ?? sourceOf(address), options.crossOriginStorage ?? isAddress(address));
      const opening = { signal: until, onBytes: nothing, onKernel: nothing, onTest: nothing };
      return await withDraft(manifest, options, until, (draft) =>
        openBackend({ manifest, source }, draft, others, opening),
      );
    } finally {
      await again?.close().catch(() => undefined);
    }
  };
  const { grammar, transcriber, prefixes = Boolean(options.store ?? isAddress(address)) } = options;
  const read: PrefixHost["read"] = (file) => readFile(sourceOf(address), file, new AbortController().signal);
  const kept = prefixes && { ...(prefixes as PrefixOptions), read };
  return { ...loaded, grammar, transcriber, encoders, images, audio, reason, reopen, prefixes: kept };
}

/**
 * The memory that a bundle needs, computed from its manifest alone. Throws RequestError, BundleError, DeviceError, or
 * the signal's reason.
 */
export async function plan(bundle: BundleAddress, unchecked: LoadOptions): Promise<MemoryPlan> {
  const options = optionsOf(unchecked);
  const { signal = new AbortController().signal } = options;
  const planned = choose(bundle, options)
    .then(({ addresses: [address = bundle] }) => loadManifest(sourceOf(address), signal))
    .then((manifest) =>
      withDraft(manifest, { ...options, store: false }, signal, (draft) => planManifest(manifest, draft, options)),
    );
  return unlessAborted(planned, signal);
}

async function planManifest(manifest: AnyManifest, draft: Draft, options: LoadOptions): Promise<MemoryPlan> {
  if (isExport(manifest)) return planOnnx(manifest, options);
  const planned = await planner(options);
  const model = draft === "heads" ? manifest : withoutHeads(manifest);
  if (typeof draft !== "object") return planned(model, options);
  return (await importDrafts()).shareMemory(planned, model, draft.manifest as Manifest, options).plan;
}

/** `planMemory` on the adapter of these options. */
async function planner(options: LoadOptions): Promise<Planner> {
  const { features } = options.adapter ?? (await findAdapter(options.gpu));
  return (manifest, memory) => planMemory(manifest, chooseActivation(manifest, features), memory);
}

/** What guesses tokens; undefined without drafts. */
type Draft = Candidate | "heads" | "ngram" | undefined;

/** Calls ``use`` with the draft of a model. Throws RequestError for a draft that cannot guess its tokens. */
async function withDraft<T>(
  model: AnyManifest,
  options: LoadOptions,
  signal: AbortSignal,
  use: (draft: Draft) => Promise<T>,
): Promise<T> {
  const { draft: address } = options;
  if (!address) return use(undefined);
  const { requireDrafts, requireSameTokens } = await importDrafts();
  requireDrafts(model, address === "heads");
  if (address === "heads" || address === "ngram") return use(address);
  const draft = await openCandidate(address, signal, { ...options, onProgress: undefined });
  try {
    requireSameTokens(model, draft.manifest);
    const used = await use(draft);
    await draft.stored?.finish().catch(() => undefined);
    return used;
  } finally {
    await draft.stored?.close().catch(() => undefined);
  }
}

async function openBackend(
  { manifest, source }: Bundle<AnyManifest>,
  draft: Draft,
  options: LoadOptions,
  opening: Opening,
): Promise<Backend> {
  if (isExport(manifest)) return openOnnx({ manifest, source }, options, opening);
  const bundle = { manifest: draft === "heads" ? manifest : withoutHeads(manifest), source };
  if (draft === undefined) return openWebGpu(bundle, options, opening);
  const [{ openWithDrafts }, planned] = await Promise.all([importDrafts(), planner(options)]);
  return openWithDrafts(openWebGpu, planned, bundle, draft, options, opening);
}

async function loadFrom(
  opened: Candidate,
  draft: Draft,
  signal: AbortSignal,
  options: LoadOptions,
): Promise<Omit<Loaded, "reopen" | "reason">> {
  const { manifest, stored } = opened;
  let progress = LOAD_START;
  const report = (change: Partial<LoadProgress>): void => {
    progress = { ...progress, ...change };
    options.onProgress?.(progress);
  };
  // The tokenizer of a draft is the model's.
  const other = typeof draft === "object" ? draft : null;
  const weights = other && !isExport(other.manifest) ? other.manifest.shards : [];
  const totalBytes = [...filesToLoad(manifest), ...weights].reduce((sum, { size }) => sum + size, 0);
  await other?.stored?.begin(other.manifest);
  let downloads = stored === null || (await stored.begin(manifest)) > 0;
  const onBytes: OnBytes = (count, origin) => {
    if (origin === "network") downloads = true;
    const loadedBytes = progress.loadedBytes + count;
    const storedBytes = progress.storedBytes + (origin === "store" ? count : 0);
    report({ loadedBytes, storedBytes, phase: downloads && loadedBytes < totalBytes ? "download" : "upload" });
  };
  report({ phase: downloads ? "download" : "upload", totalBytes });
  // A missing file ends the load now, before kernels compile.
  await Promise.all(filesToLoad(manifest).map(async (file) => opened.source.check?.(file, signal)));
  const onKernel = (compiledKernels: number, totalKernels: number): void => {
    report({ compiledKernels, totalKernels });
  };
  // If one of the two fails, the other stops.
  const failed = new AbortController();
  const either = AbortSignal.any([signal, failed.signal]);
  const stop = (error: unknown): never => {
    failed.abort(error);
    throw error;
  };
  const onTest = (selfTestRuns: number): void => {
    report({ phase: "self-test", selfTestRuns });
  };
  const [backend, tokenizer] = await Promise.allSettled([
    openBackend(opened, draft, options, { signal: either, onBytes, onKernel, onTest }).catch(stop),
    loadTokenizer(opened, either, onBytes).catch(stop),
  ]);
  if (backend.status === "fulfilled" && tokenizer.status === "fulfilled") {
    report({ phase: "ready" });
    return { manifest, id: await bundleId(manifest), backend: backend.value, ...tokenizer.value, totalBytes };
  }
  if (backend.status === "fulfilled") backend.value.destroy();
  throw failed.signal.reason as Error;
}

/** Whether the model sees pictures ("vision"), or hears. */
export function hasPlan(manifest: AnyManifest, name: "vision" | "hearing"): boolean {
  const spec = name === "vision" ? manifest.images : manifest.sounds;
  return spec !== null && "plans" in manifest && manifest.plans[name] !== undefined;
}

function sourceOf(address: BundleAddress): Source {
  if (isAddress(address)) return httpSource(address);
  const { open } = Object(address) as Partial<Source>;
  if (typeof open !== "function")
    throw new RequestError(`The bundle is ${shown(address)}, it must be an address or a source`, { param: "bundle" });
  return address;
}

function nothing(): void {
  // These bytes were counted by the first load.
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
