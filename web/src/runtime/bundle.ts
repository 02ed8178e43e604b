// An open bundle: its checked manifest, and the source of its other files.

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

/** The files of a bundle that a load reads, in addition to its manifest and kernels. */
export function filesToLoad(manifest: AnyManifest): readonly FileEntry[] {
  if (!isExport(manifest)) return [...manifest.shards, ...manifest.files.filter(({ file }) => !LATER.test(file))];
  // The other files are for the framework's own tools.
  return manifest.files.filter(({ file }) => file.startsWith(ONNX_FOLDER) || file === manifest.tokenizer.file);
}

/** What a probe reads before a load. */
export const PROBE_FILE = "probe.json";

/** What a probe reads, and the keys and values of the start of prompts, which are read for one. */
const LATER = /^(?:probe\.json$|prefixes\/)/;

/** The folder of the graph and the weights in an ONNX bundle. */
export const ONNX_FOLDER = "onnx/";

/** The id of a bundle: the hash of its manifest, which contains the hashes of its weights. */
export async function bundleId(manifest: AnyManifest): Promise<string> {
  return sha256(new TextEncoder().encode(JSON.stringify(manifest)));
}
