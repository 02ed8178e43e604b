// One file of a bundle, whole and checked. What the manifest says of it flows in with a source; its bytes flow out once size and SHA-256 agree.

import { BundleError, messageOf } from "../errors.js";
import type { Source } from "./source.js";

/** ``size`` in bytes and ``sha256`` in hexadecimal are checked where they are given. */
export interface Expected {
  readonly file: string;
  readonly size?: number;
  readonly sha256?: string;
}

export type Bytes = Uint8Array<ArrayBuffer>;

const CORRUPT = "the file was damaged or cut off on its way; upload or compile the bundle again, and clear caches in between";

/** ``onBytes`` is told how many bytes have just come. Throws BundleError for wrong bytes. */
export async function readFile(
  source: Source,
  expected: Expected,
  signal: AbortSignal,
  onBytes: (count: number) => void = () => undefined,
): Promise<Bytes> {
  const bytes = await collect(source, expected, signal, onBytes);
  if (expected.size !== undefined && bytes.length !== expected.size) throw wrongSize(expected.file, bytes.length, expected.size);
  if (expected.sha256 !== undefined) {
    const found = await sha256(bytes);
    if (found !== expected.sha256) {
      throw new BundleError(
        `${expected.file}: has SHA-256 ${found.slice(0, 12)}..., the manifest says ${expected.sha256.slice(0, 12)}...; ${CORRUPT}`,
        { file: expected.file, found, expected: expected.sha256 },
      );
    }
  }
  return bytes;
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

async function collect(source: Source, expected: Expected, signal: AbortSignal, onBytes: (count: number) => void): Promise<Bytes> {
  const stream = await source.open(expected.file, signal);
  const reader = stream.getReader();
  const { file, size } = expected;
  // Of a known size, the bytes go straight to their place, so that a shard is in memory once.
  const whole = size === undefined ? null : new Uint8Array(size);
  const parts: Uint8Array[] = [];
  let length = 0;
  for (;;) {
    const { done, value } = await next(reader, file, signal);
    if (done) break;
    if (whole !== null && length + value.length > whole.length) {
      await reader.cancel();
      throw wrongSize(file, length + value.length, whole.length);
    }
    if (whole === null) parts.push(value);
    else whole.set(value, length);
    length += value.length;
    onBytes(value.length);
  }
  if (whole !== null) return whole.subarray(0, length);
  return new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer());
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

function wrongSize(file: string, found: number, expected: number): BundleError {
  const more = found > expected ? "at least " : "";
  return new BundleError(`${file}: has ${more}${found} bytes, the manifest says ${expected}; ${CORRUPT}`, { file, found, expected });
}
