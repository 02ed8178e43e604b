// The two kinds of manifest.

import type { ExportManifest, Manifest } from "./manifest.js";

export const MANIFEST_FILE = "manifest.json";

/** A bundle with kernels of ours for WebGPU, or one in ONNX's form. */
export type AnyManifest = Manifest | ExportManifest;

export function isExport(manifest: AnyManifest): manifest is ExportManifest {
  return manifest.target === "onnx";
}
