// Reads a complete file of a bundle from a source, and checks its size and SHA-256.

import { BundleError, messageOf } from "../errors.js";
import { pause, unlessAborted } from "./abort.js";
import type { Bytes, Expected, OnBytes, Part, Source } from "./source.js";

export type { Bytes, Expected } from "./source.js";

/**
 * The number of retries after a broken connection. The pause before them starts at ``PAUSE_MS`` and doubles: 7.75
 * seconds in total.
 */
const RETRIES = 5;
const PAUSE_MS = 250;

const CORRUPT =
  "the file was damaged or cut off on its way; upload or compile the bundle again, and clear caches in between";

/** Throws BundleError for wrong bytes, and what the source throws. */
export async function readFile(
  source: Source,
  expected: Expected,
  signal: AbortSignal,
  onBytes: OnBytes = () => undefined,
): Promise<Bytes> {
  if (source.read !== undefined) return source.read(expected, signal, onBytes);
  const bytes = await collect(
    fileChunks(source, expected, await openPart(source, expected.file, signal), signal),
    expected,
    onBytes,
  );
  const problem = await problemOf(bytes, expected);
  if (problem !== null) throw problem;
  return bytes;
}

/** The entire file as a part. Throws what the source throws, and the signal's reason as soon as it aborts. */
export async function openPart(source: Source, file: string, signal: AbortSignal): Promise<Part> {
  const opening = source.open(file, signal).then((stream) => ({ stream, start: 0, etag: null }));
  return unlessAborted(opening, signal, cancelPart);
}

/** The defect of a file's bytes, or null. */
export async function problemOf(bytes: Bytes, { file, size, sha256: expected }: Expected): Promise<BundleError | null> {
  if (size !== undefined && bytes.length !== size) return wrongSize(file, bytes.length, size);
  const found = expected === undefined ? undefined : await sha256(bytes);
  if (expected === undefined || found === expected || found === undefined) return null;
  return new BundleError(
    `${file}: has SHA-256 ${found.slice(0, 12)}..., the manifest says ${expected.slice(0, 12)}...; ${CORRUPT}`,
    {
      file,
      found,
      expected,
    },
  );
}

/** All chunks as one. Throws BundleError if they are more than expected, and what ``chunks`` throws. */
export async function collect(
  chunks: AsyncIterable<Uint8Array>,
  { file, size }: Expected,
  onBytes: OnBytes,
): Promise<Bytes> {
  // If the size is known, the bytes are written directly to their offset, so that a shard is in memory only once.
  const buffer = size === undefined ? null : allocate(file, size);
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of chunks) {
    if (buffer !== null && length + chunk.length > buffer.length)
      throw wrongSize(file, length + chunk.length, buffer.length);
    if (buffer === null) parts.push(chunk);
    else buffer.set(chunk, length);
    length += chunk.length;
    onBytes(chunk.length, "network");
  }
  if (buffer !== null) return buffer.subarray(0, length);
  return new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer());
}

function allocate(file: string, size: number): Bytes {
  try {
    return new Uint8Array(size);
  } catch (error) {
    throw new BundleError(
      `${file}: the manifest says that it has ${size} bytes, which cannot be allocated; free memory, use a smaller ` +
        "model, or compile the bundle again if the size is wrong",
      { file, size },
      { cause: error },
    );
  }
}

/**
 * The bytes of a file from ``part`` on, as they arrive. If the source can open a file at an offset, a broken connection
 * is retried a few times and continues from there. Throws BundleError if it still breaks, and the signal's reason.
 */
export async function* fileChunks(
  source: Source,
  { file, size }: Expected,
  part: Part,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  const openAt = source.openAt?.bind(source);
  let length = part.start;
  let open = (): Promise<Part> => Promise.resolve(part);
  for (let retries = 0; ; retries++) {
    const before = length;
    let broken: BundleError | null = null;
    try {
      const { stream, start } = await unlessAborted(open(), signal, cancelPart);
      let position = start;
      for await (const chunk of chunksOf(stream, file, signal)) {
        // A server without ranges starts from the beginning; skip the bytes that are already here.
        const added = chunk.subarray(Math.max(0, length - position));
        position += chunk.length;
        length = Math.max(length, position);
        if (added.length > 0) yield added;
      }
    } catch (error) {
      // The server will refuse the request again, unless it was a server error.
      if (!(error instanceof BundleError) || Number(error.details.status) < 500) throw error;
      broken = error;
    }
    // Without Content-Length, a broken connection looks like the end of the file. If the next one adds nothing, the
    // file is too short.
    if (length >= (size ?? Infinity) || (broken === null && (size === undefined || length === before))) return;
    if (openAt === undefined || retries === RETRIES) {
      if (broken === null) return;
      throw broken;
    }
    await pause(PAUSE_MS * 2 ** retries, signal);
    open = () => openAt(file, length, part.etag, signal);
  }
}

/**
 * A stream's bytes as they arrive; a loop that is left cancels it. Throws BundleError if it breaks, and the signal's
 * reason as soon as it aborts.
 */
async function* chunksOf(
  stream: ReadableStream<Uint8Array>,
  file: string,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await next(reader, file, signal);
      if (done) return;
      yield value;
    }
  } finally {
    // A stream that has ended or failed has nothing to cancel, and a hanging stream must not block.
    reader.cancel().catch(() => undefined);
  }
}

/** Cancel a part that is not needed. */
export function cancelPart({ stream }: Pick<Part, "stream">): void {
  stream.cancel().catch(() => undefined);
}

/** Run ``task`` on all items, at most ``limit`` at a time. The first failure ends it. */
export async function inParallel<T>(
  items: readonly T[],
  limit: number,
  task: (item: T, index: number) => Promise<void>,
): Promise<void> {
  const queue = items.entries();
  const worker = async (): Promise<void> => {
    for (const [index, item] of queue) await task(item, index);
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, worker));
}

/** The SHA-256 in hexadecimal. */
export async function sha256(bytes: Bytes): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", bytes);
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function wrongSize(file: string, found: number, expected: number): BundleError {
  const more = found > expected ? "at least " : "";
  return new BundleError(`${file}: has ${more}${found} bytes, the manifest says ${expected}; ${CORRUPT}`, {
    file,
    found,
    expected,
  });
}

async function next(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  file: string,
  signal: AbortSignal,
): Promise<ReadableStreamReadResult<Uint8Array>> {
  try {
    return await unlessAborted(reader.read(), signal);
  } catch (error) {
    signal.throwIfAborted();
    throw new BundleError(
      `${file}: the download broke off (${messageOf(error)}); check the connection and load again`,
      { file },
      { cause: error },
    );
  }
}
