// One file of a bundle, whole and checked. What the manifest says of it flows in with a source; its bytes flow out once size and SHA-256 agree.

import { BundleError, messageOf } from "../errors.js";
import type { Bytes, Expected, OnBytes, Source } from "./source.js";

export type { Bytes, Expected } from "./source.js";

const CORRUPT = "the file was damaged or cut off on its way; upload or compile the bundle again, and clear caches in between";

/** Throws BundleError for wrong bytes, and what the source throws. */
export async function readFile(source: Source, expected: Expected, signal: AbortSignal, onBytes: OnBytes = () => undefined): Promise<Bytes> {
  if (source.read !== undefined) return source.read(expected, signal, onBytes);
  const bytes = await collect(await source.open(expected.file, signal), expected, signal, onBytes);
  const problem = await problemOf(bytes, expected);
  if (problem !== null) throw problem;
  return bytes;
}

/** What is wrong with a file's bytes, or null. */
export async function problemOf(bytes: Bytes, { file, size, sha256: expected }: Expected): Promise<BundleError | null> {
  if (size !== undefined && bytes.length !== size) return wrongSize(file, bytes.length, size);
  const found = expected === undefined ? undefined : await sha256(bytes);
  if (expected === undefined || found === expected || found === undefined) return null;
  return new BundleError(`${file}: has SHA-256 ${found.slice(0, 12)}..., the manifest says ${expected.slice(0, 12)}...; ${CORRUPT}`, {
    file,
    found,
    expected,
  });
}

/** The whole of a stream. Throws BundleError where it breaks off or is longer than expected. */
export async function collect(stream: ReadableStream<Uint8Array>, { file, size }: Expected, signal: AbortSignal, onBytes: OnBytes): Promise<Bytes> {
  // Of a known size, the bytes go straight to their place, so that a shard is in memory once.
  const whole = size === undefined ? null : new Uint8Array(size);
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of chunksOf(stream, file, signal)) {
    if (whole !== null && length + chunk.length > whole.length) throw wrongSize(file, length + chunk.length, whole.length);
    if (whole === null) parts.push(chunk);
    else whole.set(chunk, length);
    length += chunk.length;
    onBytes(chunk.length, "network");
  }
  if (whole !== null) return whole.subarray(0, length);
  return new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer());
}

/** A stream's bytes as they come; a loop that is left cancels it. Throws BundleError where it breaks off, and the signal's reason. */
export async function* chunksOf(stream: ReadableStream<Uint8Array>, file: string, signal: AbortSignal): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await next(reader, file, signal);
      if (done) return;
      yield value;
    }
  } finally {
    // Of a stream that has ended or failed there is nothing to cancel.
    await reader.cancel().catch(() => undefined);
  }
}

/** Run ``task`` on all items, at most ``limit`` at a time. The first failure ends it. */
export async function inParallel<T>(items: readonly T[], limit: number, task: (item: T, index: number) => Promise<void>): Promise<void> {
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
  return new BundleError(`${file}: has ${more}${found} bytes, the manifest says ${expected}; ${CORRUPT}`, { file, found, expected });
}

async function next(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  file: string,
  signal: AbortSignal,
): Promise<ReadableStreamReadResult<Uint8Array>> {
  try {
    signal.throwIfAborted();
    return await reader.read();
  } catch (error) {
    signal.throwIfAborted();
    throw new BundleError(`${file}: the download broke off (${messageOf(error)}); check the connection and load again`, { file }, { cause: error });
  }
}
