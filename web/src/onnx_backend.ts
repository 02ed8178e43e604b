// Opens ONNX bundles. The runner for ONNX Runtime is a separate file, which is loaded when it is first needed. The React
// Native package replaces this file, because Hermes cannot import a runtime by its address.

import type { Backend, Opening } from "./backend.js";
import { DeviceError, messageOf } from "./errors.js";
import type * as Onnx from "./onnx/index.js";
import type { OnnxOptions } from "./onnx/options.js";
import type { Bundle } from "./runtime/bundle.js";
import type { ExportManifest } from "./runtime/manifest.js";
import type { MemoryOptions, MemoryPlan } from "./runtime/memory_plan.js";

/** Throws BundleError, DeviceError, or the signal's reason. */
export async function openOnnx(
  bundle: Bundle<ExportManifest>,
  { onnx, ...memory }: MemoryOptions & { readonly onnx?: OnnxOptions | undefined },
  opening: Opening,
): Promise<Backend> {
  if (onnx === undefined) {
    throw new DeviceError(
      `${bundle.source.location}: is an ONNX bundle, and no ONNX Runtime was given; load it with ` +
        'onnx: { runtime: () => import("onnxruntime-web/wasm") }, in Node "onnxruntime-node"',
      { missing: "onnx.runtime" },
    );
  }
  return (await importOnnx()).openOnnxBackend(bundle, onnx, memory, opening);
}

/** The memory that an ONNX bundle needs. Throws DeviceError. */
export async function planOnnx(manifest: ExportManifest, options: MemoryOptions): Promise<MemoryPlan> {
  return (await importOnnx()).planExport(manifest, options);
}

async function importOnnx(): Promise<typeof Onnx> {
  try {
    return await import("./onnx/index.js");
  } catch (error) {
    throw new DeviceError(
      `The runner for ONNX bundles cannot be loaded (${messageOf(error)}); serve onnx.js beside the package's ` +
        "other files; service workers cannot load it",
      {},
      { cause: error },
    );
  }
}
