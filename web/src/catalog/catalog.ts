// The catalog of a published site. Written by compiler/publish/schema.py from catalog.py there: edit that file.

import type { ActivationEntry } from "../runtime/manifest.js";

export const CATALOG_VERSION = 1;

/** ``id`` is the hub's name, None if it is unknown. ``display``: words that a page with the model must show. */
export interface CatalogLicense {
  readonly id: string | null;
  readonly title: string;
  readonly link: string | null;
  readonly display: readonly string[];
}

/** A bundle, in ``folder`` beside the catalog. ``manifest_sha256`` is the hash of its manifest, which has the hashes of all other files. ``download_bytes``: of the files that a load reads, without its manifest and its kernels. ``memory_bytes``: what it needs to run one sequence of ``context`` tokens; ``largest_buffer_bytes``: its largest buffer. ``activations`` are the dtypes that it offers, with the features that each needs. ``kl_mean``: the measured divergence from the checkpoint, in nats; None if it was not measured. ``signed_by``: the id of the key. */
export interface CatalogBundle {
  readonly folder: string;
  readonly manifest_sha256: string;
  readonly manifest_bytes: number;
  readonly target: string;
  readonly arch: string | null;
  readonly quantization: string;
  readonly context: number;
  readonly activations: readonly ActivationEntry[];
  readonly download_bytes: number;
  readonly memory_bytes: number;
  readonly largest_buffer_bytes: number;
  readonly kl_mean: number | null;
  readonly signed_by: string | null;
}

/** ``bundles``: for each target the most exact first. */
export interface CatalogModel {
  readonly model: string;
  readonly task: "generate" | "embed" | "rerank" | "classify" | "decide" | "transcribe";
  readonly license: CatalogLicense;
  readonly base_models: readonly string[];
  readonly bundles: readonly CatalogBundle[];
}

/** ``models``: by the names by which they are loaded. */
export interface Catalog {
  readonly format_version: number;
  readonly generator: string;
  readonly models: Readonly<Record<string, CatalogModel>>;
}
