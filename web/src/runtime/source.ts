// Where a bundle's files come from. A file's name flows in, a stream of its bytes flows out; what is wrong with the bytes is read_file.ts's.

import { BundleError, messageOf } from "../errors.js";

export interface Source {
  /** For messages: the address of the bundle's folder. */
  readonly location: string;
  /** Throws BundleError where the file cannot be had, and the signal's reason when it is aborted. */
  open(file: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>>;
}

/** A bundle's folder on a web server. */
export function httpSource(url: string | URL): Source {
  const base = new URL(url, typeof document === "undefined" ? undefined : document.baseURI);
  // Without the slash a relative name would replace the folder's own.
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return {
    location: base.href,
    async open(file, signal) {
      const address = new URL(file, base);
      // The query carries what a host asks for, such as a signature.
      if (address.search === "") address.search = base.search;
      const response = await fetched(address.href, file, signal);
      if (!response.ok) {
        throw new BundleError(
          `${file}: ${address.href} answers ${response.status} ${response.statusText}; check that the bundle is there`,
          { file, status: response.status },
        );
      }
      return response.body ?? new Blob().stream();
    },
  };
}

async function fetched(address: string, file: string, signal: AbortSignal): Promise<Response> {
  try {
    return await fetch(address, { signal });
  } catch (error) {
    signal.throwIfAborted();
    throw new BundleError(
      `${file}: ${address} cannot be fetched (${messageOf(error)}); check the connection, and that the host allows this page's origin`,
      { file },
      { cause: error },
    );
  }
}
