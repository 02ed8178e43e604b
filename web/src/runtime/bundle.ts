// A bundle, opened: its manifest, checked, and the source of its other files.

import type { Manifest } from "./manifest.js";
import { loadManifest } from "./load_manifest.js";
import { sha256 } from "./read_file.js";
import type { Source } from "./source.js";

export interface Bundle {
  readonly manifest: Manifest;
  readonly source: Source;
}

/** Throws BundleError where the manifest is missing or not one that this runtime reads. */
export async function openBundle(source: Source, signal: AbortSignal): Promise<Bundle> {
  return { manifest: await loadManifest(source, signal), source };
}

/** Names a bundle by all that its manifest says, the hashes of its weights included. */
export async function bundleId(manifest: Manifest): Promise<string> {
  return sha256(new TextEncoder().encode(JSON.stringify(manifest)));
}
