// Loading: a bundle's address flows in; a runner that is trusted on this device and a tokenizer flow out, with progress on the way.

import { BundleError } from "./errors.js";
import type { Bundle } from "./runtime/bundle.js";
import { bundleId, openBundle } from "./runtime/bundle.js";
import { chooseActivation, findAdapter } from "./runtime/device.js";
import type { Manifest } from "./runtime/manifest.js";
import type { MemoryOptions, MemoryPlan } from "./runtime/memory_plan.js";
import { planMemory } from "./runtime/memory_plan.js";
import { readFile } from "./runtime/read_file.js";
import type { OnBytes, Source } from "./runtime/source.js";
import { httpSource } from "./runtime/source.js";
import type { TrustedRunner, TrustOptions } from "./runtime/trust.js";
import { openTrusted } from "./runtime/trust.js";
import type { BundleStore } from "./store/bundle_store.js";
import type { StoredSource } from "./store/stored_source.js";
import { storedSource } from "./store/stored_source.js";
import { Tokenizer } from "./text/tokenizer.js";

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
}

export interface Loaded {
  readonly manifest: Manifest;
  /** As `bundleId` gives it. */
  readonly id: string;
  readonly trusted: TrustedRunner;
  readonly tokenizer: Tokenizer;
  /** The text of tokenizer.json. */
  readonly tokenizerJson: string;
  /** Of weights and tokenizer. */
  readonly totalBytes: number;
  /** The bundle once more, on a new device, as after the old one was lost. Files come from the store where they are kept. */
  reopen(signal: AbortSignal): Promise<TrustedRunner>;
}

/** Throws BundleError, DeviceError, StorageError, or the signal's reason. */
export async function load(address: string | URL | Source, options: LoadOptions): Promise<Loaded> {
  const isAddress = typeof address === "string" || address instanceof URL;
  const source = isAddress ? httpSource(address) : address;
  const signal = options.signal ?? new AbortController().signal;
  const stored = await storedSource(source, options.store ?? isAddress, signal);
  try {
    const loaded = await loadFrom(stored ?? source, stored, signal, options);
    // A store that could not note it has no worse effect than that the next load asks the network.
    await stored?.finish().catch(() => undefined);
    const reopen = async (until: AbortSignal): Promise<TrustedRunner> => {
      const again = await storedSource(source, options.store ?? isAddress, until);
      try {
        // The adapter went with its device.
        const trust = { ...options, adapter: undefined };
        return await openTrusted({ manifest: loaded.manifest, source: again ?? source }, trust, { ...memoryOptions(options), signal: until }, () => undefined);
      } finally {
        await again?.close().catch(() => undefined);
      }
    };
    return { ...loaded, reopen };
  } finally {
    await stored?.close().catch(() => undefined);
  }
}

/** What a bundle would take, by its manifest alone. Throws BundleError, DeviceError, or the signal's reason. */
export async function plan(address: string | URL | Source, options: LoadOptions): Promise<MemoryPlan> {
  const source = typeof address === "string" || address instanceof URL ? httpSource(address) : address;
  const { manifest } = await openBundle(source, options.signal ?? new AbortController().signal);
  const adapter = options.adapter ?? (await findAdapter(options.gpu));
  return planMemory(manifest, chooseActivation(manifest, adapter.features), options);
}

function memoryOptions({ maxSequences, pages, memoryBudget }: LoadOptions): MemoryOptions {
  return { maxSequences, pages, memoryBudget };
}

async function loadFrom(source: Source, stored: StoredSource | null, signal: AbortSignal, options: LoadOptions): Promise<Omit<Loaded, "reopen">> {
  let progress: LoadProgress = { phase: "manifest", loadedBytes: 0, storedBytes: 0, totalBytes: 0, compiledKernels: 0, totalKernels: 0 };
  const report = (change: Partial<LoadProgress>): void => {
    progress = { ...progress, ...change };
    options.onProgress?.(progress);
  };
  report({});
  const opened = await openBundle(source, signal);
  const { manifest } = opened;
  const totalBytes = [...manifest.shards, ...manifest.files].reduce((sum, { size }) => sum + size, 0);
  let downloads = stored === null || (await stored.begin(manifest)) > 0;
  const onBytes: OnBytes = (count, origin) => {
    if (origin === "network") downloads = true;
    const loadedBytes = progress.loadedBytes + count;
    const storedBytes = progress.storedBytes + (origin === "store" ? count : 0);
    report({ loadedBytes, storedBytes, phase: downloads && loadedBytes < totalBytes ? "download" : "upload" });
  };
  report({ phase: downloads ? "download" : "upload", totalBytes });
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
  const [trusted, tokenizer] = await Promise.allSettled([
    openTrusted(opened, options, { ...memoryOptions(options), signal: either, onBytes, onKernel }, onTest).catch(stop),
    loadTokenizer(opened, either, onBytes).catch(stop),
  ]);
  if (trusted.status === "fulfilled" && tokenizer.status === "fulfilled") {
    report({ phase: "ready" });
    return { manifest, id: await bundleId(manifest), trusted: trusted.value, ...tokenizer.value, totalBytes };
  }
  if (trusted.status === "fulfilled") trusted.value.runner.destroy();
  throw failed.signal.reason as Error;
}

async function loadTokenizer({ manifest, source }: Bundle, signal: AbortSignal, onBytes: OnBytes): Promise<Pick<Loaded, "tokenizer" | "tokenizerJson">> {
  const { file } = manifest.tokenizer;
  const entry = manifest.files.find((candidate) => candidate.file === file);
  if (entry === undefined) throw new BundleError(`manifest.json: tokenizer.file '${file}' is not in files; compile the bundle again`, { file });
  const tokenizerJson = new TextDecoder().decode(await readFile(source, entry, signal, onBytes));
  return { tokenizer: new Tokenizer(tokenizerJson, manifest.tokenizer), tokenizerJson };
}
