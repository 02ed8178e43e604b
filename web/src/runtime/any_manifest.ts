// The two kinds of manifest.

import type { ExportManifest, Manifest } from "./manifest.js";

export const MANIFEST_FILE = "manifest.json";

/** The manifest of a WebGPU bundle with our kernels, or of an ONNX bundle. */
export type AnyManifest = Manifest | ExportManifest;

export function isExport(manifest: AnyManifest): manifest is ExportManifest {
  return manifest.target === "onnx";
}
