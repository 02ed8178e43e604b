// A bundle, opened: its manifest, checked, and the source of its other files.

import type { Manifest } from "./manifest.js";
import { loadManifest } from "./load_manifest.js";
import type { Source } from "./source.js";

export interface Bundle {
  readonly manifest: Manifest;
  readonly source: Source;
}

/** Throws BundleError where the manifest is missing or not one that this runtime reads. */
export async function openBundle(source: Source, signal: AbortSignal): Promise<Bundle> {
  return { manifest: await loadManifest(source, signal), source };
}
