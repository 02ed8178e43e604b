// A bundle, opened: its manifest, checked, and the source of its other files.

import { BundleError } from "../errors.js";
import type { AnyManifest } from "./any_manifest.js";
import { MANIFEST_FILE, isExport } from "./any_manifest.js";
import { loadManifest } from "./load_manifest.js";
import type { FileEntry, Manifest } from "./manifest.js";
import { sha256 } from "./read_file.js";
import type { Source } from "./source.js";

export interface Bundle<M extends AnyManifest = Manifest> {
  readonly manifest: M;
  readonly source: Source;
}

/** Throws BundleError where the manifest is missing or not one of WebGPU's that this runtime reads. */
export async function openBundle(source: Source, signal: AbortSignal): Promise<Bundle> {
  const manifest = await loadManifest(source, signal);
  if (isExport(manifest)) {
    throw new BundleError(
      `${MANIFEST_FILE}: is for target "onnx"; the WebGPU runtime needs "webgpu": use Engine.load, which runs both`,
      { found: manifest.target },
    );
  }
  return { manifest, source };
}

/** What a load reads of a bundle, beside its manifest and kernels. */
export function filesToLoad(manifest: AnyManifest): readonly FileEntry[] {
  if (!isExport(manifest)) return [...manifest.shards, ...manifest.files];
  // The others are for the framework's own tools.
  return manifest.files.filter(({ file }) => file.startsWith(ONNX_FOLDER) || file === manifest.tokenizer.file);
}

/** Where a bundle in ONNX's form has its graph and its weights. */
export const ONNX_FOLDER = "onnx/";

/** Names a bundle by all that its manifest says, the hashes of its weights included. */
export async function bundleId(manifest: AnyManifest): Promise<string> {
  return sha256(new TextEncoder().encode(JSON.stringify(manifest)));
}
