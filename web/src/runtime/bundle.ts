// An open bundle: its checked manifest, and the source of its other files.

import { BundleError } from "../errors.js";
import type { AnyManifest } from "./any_manifest.js";
import { MANIFEST_FILE, isExport } from "./any_manifest.js";
import { loadManifest } from "./load_manifest.js";
import type { Manifest } from "./manifest.js";
import { sha256 } from "./read_file.js";
import type { Source } from "./source.js";

export interface Bundle<M extends AnyManifest = Manifest> {
  readonly manifest: M;
  readonly source: Source;
}

/** Throws BundleError if the manifest is missing, or is not a WebGPU manifest that this runtime can read. */
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

/** The id of a bundle: the hash of its manifest, which contains the hashes of its weights. */
export async function bundleId(manifest: AnyManifest): Promise<string> {
  return sha256(new TextEncoder().encode(JSON.stringify(manifest)));
}
