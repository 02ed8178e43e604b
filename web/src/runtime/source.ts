// The source of a bundle's files: opens streams of bytes by file name. read_file.ts checks the bytes.

import { BundleError, messageOf } from "../errors.js";
import { wrongSize } from "./read_file.js";

export type Bytes = Uint8Array<ArrayBuffer>;

/** ``size`` in bytes and ``sha256`` in hexadecimal are checked if they are present. */
export interface Expected {
  readonly file: string;
  readonly size?: number;
  readonly sha256?: string;
}

/**
 * Called with the number of bytes that have just arrived, and their origin. A negative number subtracts bytes that were
 * damaged.
 */
export type OnBytes = (count: number, origin: "network" | "store") => void;

/** A file's bytes from ``start`` on. ``etag`` is the file's version, if the server sends a strong ETag. */
export interface Part {
  readonly stream: ReadableStream<Uint8Array>;
  readonly start: number;
  readonly etag: string | null;
}

export interface Source {
  /** The address of the bundle's folder, for messages. */
  readonly location: string;
  /** Throws BundleError if the file cannot be opened, and the signal's reason when it is aborted. */
  open(file: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>>;
  /**
   * Opens a file from byte ``offset`` of the version ``etag`` on, or from the start if that is not possible. For files
   * that the caller stores itself.
   */
  openAt?(file: string, offset: number, etag: string | null, signal: AbortSignal): Promise<Part>;
  /**
   * Throws BundleError if the file is missing or, according to the headers, has another size. It must be fast, because
   * a load checks all files before it starts.
   */
  check?(expected: Expected, signal: AbortSignal): Promise<void>;
  /** Reads the complete file and checks it, for a source that does this itself. `readFile` then only calls this. */
  read?(expected: Expected, signal: AbortSignal, onBytes: OnBytes): Promise<Bytes>;
  /** A file that was read and checked, in the files of a store, so that its parts can be read again; null if it is not stored. */
  stored?(expected: Expected): Promise<Blob | null>;
}

/** The normalised address of a bundle's folder. Throws BundleError if it is not an address. */
export function bundleAddress(url: string | URL): URL {
  const base = baseAddress();
  let address: URL;
  try {
    address = new URL(url, base);
  } catch (error) {
    const advice =
      base === undefined
        ? "here it must start with https:// or http://; pass a folder on this machine as a source"
        : "correct it";
    throw new BundleError(
      `'${String(url)}' is not the address of a bundle's folder; ${advice}`,
      { address: String(url) },
      { cause: error },
    );
  }
  // Without the slash, a relative name would replace the folder's name.
  if (!address.pathname.endsWith("/")) address.pathname += "/";
  address.hash = "";
  return address;
}

/** A bundle's folder on a web server. */
export function httpSource(url: string | URL): Source {
  const base = bundleAddress(url);
  const request = async (file: string, init: RequestInit & { readonly signal: AbortSignal }): Promise<Response> => {
    const address = new URL(file, base);
    // The query contains what a host requires, such as a signature.
    if (address.search === "") address.search = base.search;
    const response = await fetched(address.href, file, init);
    // 416: the file does not have this range, so the caller requests the entire file.
    if (response.ok || (response.status === 416 && init.headers !== undefined)) return response;
    throw new BundleError(
      `${file}: ${address.href} answers ${response.status} ${response.statusText}; check that the bundle is there`,
      { file, status: response.status },
    );
  };
  return {
    location: base.href,
    async check({ file, size }, signal) {
      // Some hosts answer HEAD differently, so only a refusal of GET counts.
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
      // A copy in the browser's cache may be older than the manifest, so it is validated with the server.
      return bodyOf(await request(file, { signal, cache: "no-cache" }));
    },
    async openAt(file, offset, etag, signal) {
      if (offset > 0) {
        const headers: Record<string, string> = { Range: `bytes=${offset}-` };
        // For another origin this header would cost a preflight request, which few hosts answer; the SHA-256 detects a
        // changed file anyway.
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

/** The base of relative addresses: the page; in a worker its script; in Node none. */
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
      `${file}: ${address} cannot be fetched (${messageOf(error)}); ` +
        "check the connection, and that the host allows this page's origin",
      { file },
      { cause: error },
    );
  }
}

/**
 * The length of the file in bytes; null if the headers do not contain it, because of compression or because another
 * origin hides it.
 */
function lengthOf({ headers, type }: Response): number | null {
  const length = headers.get("Content-Length");
  return length === null || type === "cors" || headers.has("Content-Encoding") ? null : Number(length);
}

function bodyOf(response: Response): ReadableStream<Uint8Array> {
  return response.body ?? new Blob().stream();
}

function startsAt(response: Response, offset: number): boolean {
  const header = response.headers.get("Content-Range");
  // A server of another origin must allow pages to read this header, and few servers do.
  if (header === null) return response.type === "cors";
  return parseContentRange(header)?.start === offset;
}

/** A weak ETag may refer to different bytes of the same meaning, so it does not count. */
function etagOf(response: Response): string | null {
  const etag = response.headers.get("ETag");
  return etag === null || etag.startsWith("W/") ? null : etag;
}

/**
 * The bytes of the file in a partial response (RFC 9110, section 14.4), from byte ``start`` to byte ``end``, both included.
 * ``size``: of the entire file in bytes; null if the server does not know it.
 */
interface ContentRange {
  readonly start: number;
  readonly end: number;
  readonly size: number | null;
}

/** Null if the header is not a single range of bytes. */
export function parseContentRange(header: string): ContentRange | null {
  const match = /^\s*bytes\s+(\d+)-(\d+)\/(\d+|\*)\s*$/i.exec(header);
  if (match === null) return null;
  const [start, end] = [Number(match[1]), Number(match[2])];
  const size = match[3] === "*" ? null : Number(match[3]);
  return start <= end && (size === null || end < size) ? { start, end, size } : null;
}
