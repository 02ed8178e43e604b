// Opens a session of ONNX Runtime with a bundle's graph and weights, or throws an error that states the reason.

import { BundleError, DeviceError, RequestError, messageOf } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import { unlessAborted } from "../runtime/abort.js";
import type { Bundle } from "../runtime/bundle.js";
import { ONNX_FOLDER, filesToLoad } from "../shared/files_to_load.js";
import type { ExportManifest } from "../runtime/manifest.js";
import type { Bytes } from "../runtime/read_file.js";
import { inParallel, readFile } from "../runtime/read_file.js";
import type { OnBytes } from "../runtime/source.js";
import { importModule } from "./import_module.js";
import { withNewRows } from "./new_rows.js";
import type { OnnxModule, OnnxOptions, OnnxRuntime, OnnxSession } from "./options.js";
import { planesOf } from "./runner.js";

export const GRAPH_FILE = `${ONNX_FOLDER}model.onnx`;
const PARALLEL_FILES = 4;
const WASM_BYTES = 2 ** 32;

/** Throws RequestError if the module is not ONNX Runtime, DeviceError if it cannot be loaded. */
export async function loadRuntime({ runtime }: OnnxOptions): Promise<OnnxRuntime> {
  const module: unknown = await (typeof runtime === "function" ? runtime() : importModule(addressOf(runtime))).catch(
    (error: unknown) => {
      throw new DeviceError(
        `ONNX Runtime cannot be loaded (${messageOf(error)}); check onnx.runtime, and that its files are served`,
        {},
        { cause: error },
      );
    },
  );
  return runtimeOf(module, "onnx.runtime");
}

/**
 * ONNX Runtime in a module. ``option`` is the option that contained it. Throws RequestError if it is not ONNX Runtime.
 */
export function runtimeOf(imported: unknown, option: string): OnnxRuntime {
  const module = imported as OnnxModule | null | undefined;
  const candidates = [
    module,
    module != null && typeof module === "object" && "default" in module ? module.default : null,
  ];
  const ort = candidates.find(
    (candidate): candidate is OnnxRuntime =>
      typeof candidate === "object" && candidate !== null && "InferenceSession" in candidate,
  );
  if (ort === undefined)
    throw new RequestError(`${option} is not ONNX Runtime: it has no InferenceSession`, { param: option });
  return ort;
}

/** A description of the runtime: its version and platform. */
export function describeRuntime({ env }: OnnxRuntime): string {
  const versions = env.versions as Readonly<Record<string, string | undefined>>;
  if (versions.web !== undefined) return `ONNX Runtime ${versions.web}, WebAssembly`;
  return `ONNX Runtime ${versions.node ?? versions["react-native"] ?? versions.common ?? ""}`.trim();
}

/** Throws BundleError, DeviceError, or the signal's reason. */
export async function openSession(
  ort: OnnxRuntime,
  { manifest, source }: Bundle<ExportManifest>,
  { sessionOptions }: OnnxOptions,
  signal: AbortSignal,
  onBytes: OnBytes,
): Promise<OnnxSession> {
  const entries = filesToLoad(manifest).filter(({ file }) => file !== manifest.tokenizer.file);
  const size = entries.reduce((sum, entry) => sum + entry.size, 0);
  if ("web" in ort.env.versions && size > WASM_BYTES) {
    throw new DeviceError(
      `${manifest.model}: has ${formatBytes(size)} of weights, ` +
        `and WebAssembly's memory holds ${formatBytes(WASM_BYTES)}; use WebGPU, or a smaller model`,
      { size },
    );
  }
  const files = new Map<string, Bytes>();
  await inParallel(entries, PARALLEL_FILES, async (entry) => {
    files.set(entry.file, await readFile(source, entry, signal, onBytes));
  });
  const graph = files.get(GRAPH_FILE);
  if (graph === undefined)
    throw new BundleError(`manifest.json: files has no ${GRAPH_FILE}; compile the bundle again`, { file: GRAPH_FILE });
  files.delete(GRAPH_FILE);
  const model = withNewRows(
    graph,
    planesOf(manifest).map(({ present }) => present),
    manifest.activation === "float32" ? "float32" : "float16",
  );
  // The graph refers to them by their paths relative to itself.
  const externalData = [...files].map(([file, data]) => ({ path: file.slice(ONNX_FOLDER.length), data }));
  try {
    const discard = (session: OnnxSession): void => {
      session.release().catch(() => undefined);
    };
    return await unlessAborted(
      ort.InferenceSession.create(model, { ...sessionOptions, externalData }),
      signal,
      discard,
    );
  } catch (error) {
    signal.throwIfAborted();
    throw sessionError(manifest, size, error);
  }
}

/** The error for an exception of `InferenceSession.create`, with advice. */
export function sessionError({ model }: ExportManifest, size: number, error: unknown): DeviceError {
  const message = messageOf(error);
  // In WebAssembly an exception may be a number, the address of the exception.
  const isMemory =
    typeof error === "number" || /bad_alloc|out of memory|allocation failed|failed to allocate/i.test(message);
  const advice = isMemory
    ? `there is not enough memory for the model's ${formatBytes(size)}: ` +
      "close other pages or apps, or use a smaller model"
    : "use the ONNX Runtime of this package's release";
  return new DeviceError(
    `${model}: ONNX Runtime cannot open it (${message}); ${advice}`,
    { size, memory: isMemory },
    { cause: error },
  );
}

function addressOf(runtime: string | URL): string {
  return new URL(
    runtime,
    typeof document === "undefined" ? (typeof location === "undefined" ? undefined : location.href) : document.baseURI,
  ).href;
}
