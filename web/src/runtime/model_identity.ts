// The identity of a bundle's model: what decides its vectors.

import { BundleError, messageOf } from "../errors.js";

interface ListedFile {
  readonly file: string;
  readonly sha256: string;
}

interface Listing {
  readonly files?: readonly ListedFile[];
  readonly shards?: readonly ListedFile[];
  readonly tokenizer?: { readonly file: string };
  readonly embedding?: unknown;
}

/**
 * The hashes of the weights and the tokenizer, and the pooling, of the bundle at this address. Kernels are left out, so
 * the identity outlives a new version of the compiler. Throws BundleError.
 */
export async function modelIdentity(bundle: string | URL): Promise<string> {
  const base = new URL(bundle, typeof document === "undefined" ? undefined : document.baseURI);
  const url = new URL("manifest.json", base.href.endsWith("/") ? base : `${base.href}/`);
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`status ${response.status}`);
    const { files = [], shards = [], tokenizer, embedding = null } = (await response.json()) as Listing;
    const listed = shards.length === 0 ? files : [...shards, ...files.filter(({ file }) => file === tokenizer?.file)];
    if (listed.length === 0) throw new Error("it lists no files");
    return JSON.stringify([embedding, listed.map((entry) => entry.sha256)]);
  } catch (error) {
    throw new BundleError(
      `${url.href} cannot be read (${messageOf(error)}); pass the address of the engine's bundle`,
      { file: url.href },
      { cause: error },
    );
  }
}
