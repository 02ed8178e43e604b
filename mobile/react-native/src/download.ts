// Downloads the files of a manifest into the app's documents folder and checks them.
//
// A file is downloaded in pieces by HTTP ranges and stored as NAME.part, so an app that was stopped continues where it
// was. The file is renamed after its SHA-256 was checked: a file without ".part" is complete.

import { BundleError, StorageError, messageOf } from "../../../web/src/errors.js";
import type { FileEntry } from "../../../web/src/runtime/manifest.js";
import type { FileSystem } from "./file_system.js";
import { Sha256 } from "./sha256.js";

/**
 * The size of a piece. React Native's fetch returns only complete bodies, so a download holds one piece in memory, and
 * loses at most one piece when it is stopped.
 */
export const PIECE_BYTES = 8 * 2 ** 20;
/** Storage that stays free for other uses of the phone. */
const SPARE_BYTES = 64 * 2 ** 20;

/** ``fetch`` is the platform's, or one that adds credentials. */
export interface DownloadOptions {
  readonly fetch: typeof fetch;
  readonly signal: AbortSignal | undefined;
  /** Receives the number of new bytes. A negative count removes bytes that were damaged. */
  readonly onBytes: (count: number, origin: "network" | "store") => void;
}

/** Puts the files of a manifest into a folder, and checks them. */
export type DownloadFiles = typeof downloadFiles;

/** Throws BundleError, StorageError if there is not enough storage, or the signal's reason. */
export async function downloadFiles(
  files: FileSystem,
  folder: string,
  address: string,
  entries: readonly FileEntry[],
  options: DownloadOptions,
): Promise<void> {
  const parts = await Promise.all(
    entries.map(async ({ file, size }) =>
      (await files.size(`${folder}/${file}`)) === size ? size : ((await files.size(partOf(folder, file))) ?? 0),
    ),
  );
  await requireRoom(
    files,
    entries.reduce((sum, { size }, index) => sum + Math.max(0, size - (parts[index] ?? 0)), 0),
  );
  for (const entry of entries) await downloadFile(files, folder, address, entry, options);
}

/** The address of a file. The query of the bundle's address follows the file's name. */
export function fileAddress(address: string, file: string): string {
  const [path = "", query] = address.split("?", 2);
  return `${path.endsWith("/") ? path : `${path}/`}${file}${query === undefined ? "" : `?${query}`}`;
}

async function downloadFile(
  files: FileSystem,
  folder: string,
  address: string,
  entry: FileEntry,
  options: DownloadOptions,
): Promise<void> {
  const { file, size } = entry;
  const [path, part] = [`${folder}/${file}`, partOf(folder, file)];
  if ((await files.size(path)) === size) {
    options.onBytes(size, "store");
    return;
  }
  await files.makeFolder(path.slice(0, path.lastIndexOf("/")));
  // A damaged file is downloaded once more from its start.
  for (let again = false; ; again = true) {
    await fetchPart(files, part, address, entry, options);
    const actual = await hashOf(files, part, options.signal);
    if (actual === entry.sha256) break;
    await files.remove(part);
    options.onBytes(-size, "network");
    if (again) {
      throw new BundleError(
        `${file}: has SHA-256 ${actual.slice(0, 12)}..., the manifest says ${entry.sha256.slice(0, 12)}...; ` +
          "upload or compile the bundle again",
        {
          file,
          found: actual,
          expected: entry.sha256,
        },
      );
    }
  }
  await files.move(part, path);
}

/** Download the missing bytes of the file's ".part". */
async function fetchPart(
  files: FileSystem,
  part: string,
  address: string,
  { file, size }: FileEntry,
  { fetch, signal, onBytes }: DownloadOptions,
): Promise<void> {
  let length = (await files.size(part)) ?? 0;
  if (length > size) {
    await files.remove(part);
    length = 0;
  }
  onBytes(length, "store");
  while (length < size) {
    signal?.throwIfAborted();
    const end = Math.min(length + PIECE_BYTES, size);
    const bytes = await fetchRange(fetch, fileAddress(address, file), file, length, end, size, signal);
    await append(files, part, bytes);
    length += bytes.length;
    onBytes(bytes.length, "network");
  }
}

/** Bytes [start, end) of a file. */
async function fetchRange(
  get: typeof fetch,
  url: string,
  file: string,
  start: number,
  end: number,
  size: number,
  signal: AbortSignal | undefined,
): Promise<Uint8Array<ArrayBuffer>> {
  let response: Response;
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    response = await get(url, {
      headers: { Range: `bytes=${start}-${end - 1}` },
      ...(signal === undefined ? {} : { signal }),
    });
    bytes = new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    signal?.throwIfAborted();
    throw new BundleError(
      `${file}: ${url} cannot be fetched (${messageOf(error)}); check the connection and load again`,
      { file },
      { cause: error },
    );
  }
  // A server without ranges sends the complete file, which is accepted if the file fits into one piece.
  const isComplete = response.status === 200 && start === 0 && end === size;
  if (response.status !== 206 && !isComplete) {
    const advice = response.status === 200 ? "the server must support HTTP ranges" : "check that the bundle is there";
    throw new BundleError(`${file}: ${url} answers ${response.status}; ${advice}`, { file, status: response.status });
  }
  if (bytes.length !== end - start) {
    throw new BundleError(
      `${file}: ${url} gives ${bytes.length} bytes of ${end - start}; upload or compile the bundle again`,
      { file, found: bytes.length, expected: end - start },
    );
  }
  return bytes;
}

/**
 * Throws StorageError if a write fails, because the cause is usually a full disk, whatever error the platform reports.
 */
async function append(files: FileSystem, path: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
  try {
    await files.append(path, bytes);
  } catch (error) {
    const availableBytes = await files.freeBytes();
    throw new StorageError(
      `${path}: cannot be written (${messageOf(error)}); free some storage and load again`,
      { neededBytes: bytes.length, availableBytes },
      { cause: error },
    );
  }
}

async function requireRoom(files: FileSystem, missing: number): Promise<void> {
  const availableBytes = await files.freeBytes();
  if (missing === 0 || availableBytes === null || availableBytes >= missing + SPARE_BYTES) return;
  throw new StorageError(
    `The model needs ${megabytes(missing + SPARE_BYTES)} MB more of this phone's storage, ` +
      `but only ${megabytes(availableBytes)} MB are free; free some storage and load again`,
    {
      neededBytes: missing + SPARE_BYTES,
      availableBytes,
    },
  );
}

async function hashOf(files: FileSystem, path: string, signal: AbortSignal | undefined): Promise<string> {
  if (files.sha256 !== undefined) return files.sha256(path);
  const hash = new Sha256();
  const size = (await files.size(path)) ?? 0;
  for (let offset = 0; offset < size; offset += PIECE_BYTES) {
    signal?.throwIfAborted();
    hash.update(await files.read(path, offset, Math.min(PIECE_BYTES, size - offset)));
  }
  return hash.digest();
}

function partOf(folder: string, file: string): string {
  return `${folder}/${file}.part`;
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(0);
}
