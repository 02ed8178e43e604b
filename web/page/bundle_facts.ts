// Facts of a bundle's manifest that the engine does not report. The pages show them before the model has loaded, and
// the bench page measures against them.

import { httpSource } from "../src/index.js";
import type { Manifest } from "../src/runtime/index.js";
import { openBundle } from "../src/runtime/index.js";
import { filesToLoad } from "../src/shared/files_to_load.js";

/** ``selfTest`` is null if the bundle has no self-test. */
export interface BundleFacts {
  readonly model: string;
  readonly quantization: string;
  readonly context: number;
  readonly parameters: number;
  readonly layers: number;
  readonly vocabSize: number;
  readonly endTokenIds: readonly number[];
  readonly downloadBytes: number;
  readonly selfTest: Manifest["self_test"];
  /** The license that the checkpoint's files name; null if they name none. */
  readonly license: string | null;
}

export function bundleFacts(manifest: Manifest): BundleFacts {
  const { model, quantization, context, spec, weights, self_test, origin } = manifest;
  return {
    model,
    quantization,
    context,
    parameters: Object.values(weights).reduce(
      (sum, { shape }) => sum + shape.reduce((product, size) => product * size, 1),
      0,
    ),
    layers: spec.num_layers,
    vocabSize: spec.vocab_size,
    endTokenIds: spec.eos_token_ids,
    downloadBytes: filesToLoad(manifest).reduce((sum, { size }) => sum + size, 0),
    selfTest: self_test,
    license: origin?.license_name ?? origin?.license ?? null,
  };
}

/** Throws BundleError. */
export async function fetchFacts(bundle: string): Promise<BundleFacts> {
  const { manifest } = await openBundle(httpSource(bundle), new AbortController().signal);
  return bundleFacts(manifest);
}

/** The bundle that the page's address names, or that of a published site, which an element names, or ./bundle/. */
export function bundleOfAddress(): string {
  const own = document.querySelector<HTMLMetaElement>('meta[name="bundle"]')?.content;
  return new URLSearchParams(location.search).get("bundle") ?? own ?? "./bundle/";
}
