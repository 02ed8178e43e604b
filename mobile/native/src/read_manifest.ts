// Reads the manifest of a bundle from its server, or without a network the one that was stored with the files.

import { BundleError, messageOf } from "../../../web/src/errors.js";
import type { AnyManifest } from "../../../web/src/runtime/any_manifest.js";
import { MANIFEST_FILE } from "../../../web/src/runtime/any_manifest.js";
import { checkManifest } from "../../../web/src/runtime/load_manifest.js";
import { fileAddress } from "../../react-native/src/download.js";
import { Sha256 } from "../../react-native/src/sha256.js";
import { encodeUtf8 } from "../../react-native/src/utf8.js";

/** A bundle's manifest, and the id that follows from it. */
export interface KnownManifest {
  readonly manifest: AnyManifest;
  readonly text: string;
  /** The SHA-256 of the manifest's text. */
  readonly id: string;
}

/** ``stored`` is the text of a stored manifest. Throws BundleError or the signal's reason. */
export async function readManifest(
  address: string,
  stored: string | null,
  get: typeof fetch,
  signal: AbortSignal | undefined,
): Promise<KnownManifest> {
  const url = fileAddress(address, MANIFEST_FILE);
  let response: Response;
  try {
    response = await get(url, {
      headers: { "Cache-Control": "no-cache" },
      ...(signal === undefined ? {} : { signal }),
    });
  } catch (error) {
    signal?.throwIfAborted();
    if (stored !== null) return known(stored);
    throw new BundleError(
      `${MANIFEST_FILE}: ${url} cannot be fetched (${messageOf(error)}); check the connection`,
      { file: MANIFEST_FILE },
      { cause: error },
    );
  }
  if (!response.ok)
    throw new BundleError(`${MANIFEST_FILE}: ${url} answers ${response.status}; check that the bundle is there`, {
      file: MANIFEST_FILE,
      status: response.status,
    });
  return known(await response.text());
}

function known(text: string): KnownManifest {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new BundleError(
      `${MANIFEST_FILE}: is not JSON (it starts with ${JSON.stringify(text.slice(0, 20))}); check the bundle's address`,
      {},
      { cause: error },
    );
  }
  return { manifest: checkManifest(data), text, id: hashOf(text) };
}

/** The SHA-256 of a text, in hexadecimal. */
export function hashOf(text: string): string {
  const hash = new Sha256();
  hash.update(encodeUtf8(text));
  return hash.digest();
}
