// Loads a bundle on a phone: downloads its files to the app's documents folder, and opens an engine with them.

import type { Backend } from "../../../web/src/backend.js";
import { Engine } from "../../../web/src/engine.js";
import { DeviceError } from "../../../web/src/errors.js";
import type { LoadProgress } from "../../../web/src/load_options.js";
import { LOAD_START } from "../../../web/src/load_options.js";
import { onnxBackend, requireDevice } from "../../../web/src/onnx/index.js";
import type { OnnxRuntime } from "../../../web/src/onnx/options.js";
import { OnnxRunner } from "../../../web/src/onnx/runner.js";
import { GRAPH_FILE, describeRuntime, runtimeOf, sessionError } from "../../../web/src/onnx/session.js";
import { planExport } from "../../../web/src/runtime/export_memory.js";
import type { AnyManifest } from "../../../web/src/runtime/any_manifest.js";
import { isExport } from "../../../web/src/runtime/any_manifest.js";
import type { ExportManifest } from "../../../web/src/runtime/manifest.js";
import type { MemoryOptions, MemoryPlan } from "../../../web/src/runtime/memory_plan.js";
import { filesToLoad } from "../../../web/src/shared/files_to_load.js";
import { Tokenizer } from "../../../web/src/text/tokenizer.js";
import { hashOf, readManifest } from "../../native/src/read_manifest.js";
import type { DownloadFiles } from "./download.js";
import { downloadFiles } from "./download.js";
import type { FileSystem } from "./file_system.js";
import { readAll, replace } from "./file_system.js";
import { fillIn } from "./fill_in.js";
import { sessionFiles } from "./session_files.js";
import { decodeUtf8, encodeUtf8 } from "./utf8.js";

export interface PhoneOptions extends MemoryOptions {
  readonly files: FileSystem;
  /** The module of `import * as ort from "onnxruntime-react-native"`. */
  readonly ort: unknown;
  /** For `InferenceSession.create`, such as `{ executionProviders: ["coreml"] }`. */
  readonly sessionOptions?: Readonly<Record<string, unknown>> | undefined;
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Downloads the files; default: JavaScript does, which stops with the app. */
  readonly download?: DownloadFiles | undefined;
  /** Replaces the platform's fetch. */
  readonly fetch?: typeof fetch | undefined;
}

/**
 * An engine with the bundle at an address. Missing files are downloaded. One sequence runs at a time unless
 * maxSequences is set. Throws BundleError, DeviceError, StorageError, or the signal's reason.
 */
export async function load(address: string, options: PhoneOptions): Promise<Engine> {
  fillIn(globalThis);
  const { files, signal, onProgress = () => undefined, download = downloadFiles, fetch: get = fetch } = options;
  let progress = LOAD_START;
  const report = (change: Partial<LoadProgress>): void => {
    progress = { ...progress, ...change };
    onProgress(progress);
  };
  report({});
  const root = `${files.documents}/nearfar`;
  const record = `${root}/${hashOf(address)}.json`;
  const before = await storedText(files, record);
  const known = await readManifest(address, before, get, signal);
  const { id } = known;
  const manifest = exportOf(known.manifest);
  requireDevice(manifest);
  const memory = { maxSequences: 1, ...options };
  const plan = planExport(manifest, memory);
  const ort = runtimeOf(options.ort, "ort");

  const entries = filesToLoad(manifest);
  const totalBytes = entries.reduce((sum, { size }) => sum + size, 0);
  report({ phase: "upload", totalBytes });
  const onBytes = (count: number, origin: "network" | "store"): void => {
    const storedBytes = progress.storedBytes + (origin === "store" ? count : 0);
    report({
      loadedBytes: progress.loadedBytes + count,
      storedBytes,
      phase: origin === "network" ? "download" : progress.phase,
    });
  };
  const folder = `${root}/${id}`;
  await download(files, folder, address, entries, { fetch: get, signal, onBytes });
  await replace(files, record, encodeUtf8(known.text));
  // Files of an older version are not needed any more.
  if (before !== null && hashOf(before) !== id) await files.remove(`${root}/${hashOf(before)}`);

  report({ phase: "upload" });
  const tokenizerJson = decodeUtf8((await readAll(files, `${folder}/${manifest.tokenizer.file}`)) ?? new Uint8Array());
  const tokenizer = new Tokenizer(tokenizerJson, manifest.tokenizer);
  const open = (): Promise<Backend> =>
    openBackend(ort, manifest, `${folder}/${GRAPH_FILE}`, plan, memory.maxSequences ?? 1, options.sessionOptions);
  const backend = await open();
  report({ phase: "ready" });
  const reason = "phones run ONNX bundles";
  return new Engine({
    manifest,
    id,
    reason,
    backend,
    tokenizer,
    tokenizerJson,
    totalBytes,
    reopen: open,
    sessions: sessionFiles(files),
  });
}

/** Delete a bundle's files from this phone. */
export async function removeBundle(address: string, files: FileSystem): Promise<void> {
  const record = `${files.documents}/nearfar/${hashOf(address)}.json`;
  const stored = await storedText(files, record);
  if (stored !== null) await files.remove(`${files.documents}/nearfar/${hashOf(stored)}`);
  await files.remove(record);
}

/** Open the model. ONNX Runtime reads its files itself, so weights do not pass through JavaScript. */
async function openBackend(
  ort: OnnxRuntime,
  manifest: ExportManifest,
  path: string,
  plan: MemoryPlan,
  maxSequences: number,
  sessionOptions: Readonly<Record<string, unknown>> = {},
): Promise<Backend> {
  const session = await ort.InferenceSession.create(path, sessionOptions).catch((error: unknown) => {
    throw sessionError(manifest, plan.weightBytes, error);
  });
  return onnxBackend(
    new OnnxRunner(ort, session, manifest, plan, maxSequences, "in-place"),
    manifest,
    plan,
    describeRuntime(ort),
  );
}

/**
 * The stored manifest, unchecked: the manifest of an older release must prevent neither the download of a newer bundle
 * nor its own removal.
 */
async function storedText(files: FileSystem, record: string): Promise<string | null> {
  const bytes = await readAll(files, record);
  return bytes === null ? null : decodeUtf8(bytes);
}

function exportOf(manifest: AnyManifest): ExportManifest {
  if (isExport(manifest)) return manifest;
  throw new DeviceError(`${manifest.model}: is compiled for ${manifest.target}; phones need --target onnx`, {
    target: manifest.target,
  });
}
