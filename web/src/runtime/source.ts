// Where a bundle's files come from. A file's name flows in, a stream of its bytes flows out; what is wrong with the bytes is read_file.ts's.

import { BundleError, messageOf } from "../errors.js";
import { parseContentRange } from "./content_range.js";
import { wrongSize } from "./read_file.js";

export type Bytes = Uint8Array<ArrayBuffer>;

/** ``size`` in bytes and ``sha256`` in hexadecimal are checked where they are given. */
export interface Expected {
  readonly file: string;
  readonly size?: number;
  readonly sha256?: string;
}

/** Told how many bytes have just come, and from where. Less than zero takes back bytes that proved damaged. */
export type OnBytes = (count: number, origin: "network" | "store") => void;

/** A file's bytes from ``start`` on. ``etag`` is its version, where the server names one that stands for equal bytes. */
export interface Part {
  readonly stream: ReadableStream<Uint8Array>;
  readonly start: number;
  readonly etag: string | null;
}

export interface Source {
  /** For messages: the address of the bundle's folder. */
  readonly location: string;
  /** Throws BundleError where the file cannot be had, and the signal's reason when it is aborted. */
  open(file: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>>;
  /** From byte ``offset`` of the version ``etag`` on, or from the start where that cannot be had. For files that the caller keeps itself. */
  openAt?(file: string, offset: number, etag: string | null, signal: AbortSignal): Promise<Part>;
  /** Throws BundleError if the file is missing or, as far as headers tell, has another size; cheap, because a load checks all files before it starts. */
  check?(expected: Expected, signal: AbortSignal): Promise<void>;
  /** The file whole and checked, of a source that sees to that itself: `readFile` leaves it all to this. */
  read?(expected: Expected, signal: AbortSignal, onBytes: OnBytes): Promise<Bytes>;
}

/** The address of a bundle's folder, in the form by which it is known. Throws BundleError where it is none. */
export function bundleAddress(url: string | URL): URL {
  const base = baseAddress();
  let address: URL;
  try {
    address = new URL(url, base);
  } catch (error) {
    const start =
      base === undefined
        ? "here it starts with https:// or http://; a folder on this machine can be given as a source"
        : "correct it";
    throw new BundleError(
      `'${String(url)}' is no address of a bundle's folder; ${start}`,
      { address: String(url) },
      { cause: error },
    );
  }
  // Without the slash a relative name would replace the folder's own.
  if (!address.pathname.endsWith("/")) address.pathname += "/";
  address.hash = "";
  return address;
}

/** A bundle's folder on a web server. */
export function httpSource(url: string | URL): Source {
  const base = bundleAddress(url);
  const request = async (file: string, init: RequestInit & { readonly signal: AbortSignal }): Promise<Response> => {
    const address = new URL(file, base);
    // The query carries what a host asks for, such as a signature.
    if (address.search === "") address.search = base.search;
    const response = await fetched(address.href, file, init);
    // 416: there is no such range of the file, so it is asked for whole.
    if (response.ok || (response.status === 416 && init.headers !== undefined)) return response;
    throw new BundleError(
      `${file}: ${address.href} answers ${response.status} ${response.statusText}; check that the bundle is there`,
      { file, status: response.status },
    );
  };
  return {
    location: base.href,
    async check({ file, size }, signal) {
      // Some hosts answer HEAD differently, so a refusal is only believed of GET.
      for (const method of ["HEAD", "GET"]) {
        try {
          const response = await request(file, { signal, cache: "no-store", method });
          response.body?.cancel().catch(() => undefined);
          const length = lengthOf(response);
          if (size === undefined || length === null || length === size) return;
          throw wrongSize(file, length, size);
        } catch (error) {
          if (method === "GET") throw error;
        }
      }
    },
    async open(file, signal) {
      // A copy in the browser's cache may be older than the manifest, so the server is asked whether it is still good.
      return bodyOf(await request(file, { signal, cache: "no-cache" }));
    },
    async openAt(file, offset, etag, signal) {
      if (offset > 0) {
        const headers: Record<string, string> = { Range: `bytes=${offset}-` };
        // From another origin this header would cost a preflight, which few hosts answer; the SHA-256 finds what it would have found.
        if (etag !== null && typeof location !== "undefined" && base.origin === location.origin)
          headers["If-Range"] = etag;
        const response = await request(file, { signal, cache: "no-store", headers });
        if (response.status === 200) return { stream: bodyOf(response), start: 0, etag: etagOf(response) };
        if (response.status === 206 && startsAt(response, offset))
          return { stream: bodyOf(response), start: offset, etag: etagOf(response) };
        await response.body?.cancel();
      }
      const response = await request(file, { signal, cache: "no-store" });
      return { stream: bodyOf(response), start: 0, etag: etagOf(response) };
    },
  };
}

/** What a relative address starts from: the page, in a worker its script, in Node nothing. */
function baseAddress(): string | undefined {
  if (typeof document !== "undefined") return document.baseURI;
  return typeof location === "undefined" ? undefined : location.href;
}

async function fetched(
  address: string,
  file: string,
  init: RequestInit & { readonly signal: AbortSignal },
): Promise<Response> {
  try {
    return await fetch(address, init);
  } catch (error) {
    init.signal.throwIfAborted();
    throw new BundleError(
      `${file}: ${address} cannot be fetched (${messageOf(error)}); check the connection, and that the host allows this page's origin`,
      { file },
      { cause: error },
    );
  }
}

/** The file's bytes; null if the headers do not tell, because of compression or because another origin hides it. */
function lengthOf({ headers, type }: Response): number | null {
  const length = headers.get("Content-Length");
  return length === null || type === "cors" || headers.has("Content-Encoding") ? null : Number(length);
}

function bodyOf(response: Response): ReadableStream<Uint8Array> {
  return response.body ?? new Blob().stream();
}

function startsAt(response: Response, offset: number): boolean {
  const header = response.headers.get("Content-Range");
  // Another origin's server has to allow that a page sees this header, and few do.
  if (header === null) return response.type === "cors";
  return parseContentRange(header)?.start === offset;
}

/** A weak ETag may stand for different bytes of the same meaning. */
function etagOf(response: Response): string | null {
  const etag = response.headers.get("ETag");
  return etag === null || etag.startsWith("W/") ? null : etag;
}
