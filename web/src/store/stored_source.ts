// A source that stores the files that it fetches from another source. It reads a file from the store, or else from the
// network into the store, and checks it. A broken download continues where it stopped. One tab fetches a file at a
// time; the others wait and read it from the store.

import { BundleError } from "../errors.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { unlessAborted } from "../runtime/abort.js";
import { MANIFEST_FILE } from "../runtime/any_manifest.js";
import { cancelPart, collect, fileChunks, openPart, problemOf, readFile, wrongSize } from "../runtime/read_file.js";
import type { Bytes, Expected, OnBytes, Part, Source } from "../runtime/source.js";
import { BundleStore } from "./bundle_store.js";
import { requestPersistence } from "./quota.js";
import type { StoredFile } from "./stored_file.js";
import { PIECE_BYTES } from "./stored_file.js";

/**
 * A source with the given store, or with the browser's default store if ``store`` is true; null if it is false or the
 * browser has no store. Throws the signal's reason.
 */
export async function storedSource(
  source: Source,
  store: boolean | BundleStore,
  signal: AbortSignal,
): Promise<StoredSource | null> {
  const opened = store === true ? await BundleStore.open() : store;
  if (opened === null || opened === false) return null;
  return new StoredSource(source, opened, await opened.hold(source.location, signal));
}

/**
 * One load of a bundle. Call `begin` when its manifest is known, `finish` when everything was read, and `close` at the
 * end in any case.
 */
export class StoredSource implements Source {
  #manifest: Bytes = new Uint8Array();
  #isNewest = false;
  readonly #reading = new Set<Promise<unknown>>();

  constructor(
    private readonly source: Source,
    private readonly store: BundleStore,
    private readonly release: () => Promise<void>,
  ) {}

  get location(): string {
    return this.source.location;
  }

  open(file: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
    return this.source.open(file, signal);
  }

  /** Completely stored files need no network. */
  async check(expected: Expected, signal: AbortSignal): Promise<void> {
    if (expected.sha256 !== undefined && (await this.store.file(expected.sha256).part()).complete) return;
    await this.source.check?.(expected, signal);
  }

  async read(expected: Expected, signal: AbortSignal, onBytes: OnBytes): Promise<Bytes> {
    const reading = this.#readAny(expected, signal, onBytes);
    this.#reading.add(reading);
    return reading.finally(() => this.#reading.delete(reading));
  }

  async stored({ sha256, size }: Expected): Promise<Blob | null> {
    if (sha256 === undefined) return null;
    const { bytes, complete } = await this.store.file(sha256).part();
    return complete && bytes.size === size ? bytes : null;
  }

  /** The number of bytes that must come over the network. Throws StorageError if there is no space for them. */
  async begin(manifest: AnyManifest): Promise<number> {
    return this.store.begin(this.location, manifest, this.#manifest);
  }

  /** Call it when all files that this device needs were read. */
  async finish(): Promise<void> {
    const isFirst = await this.store.finish(this.location, this.#manifest);
    // Only once for each bundle, because some browsers ask the user.
    if (isFirst) requestPersistence();
  }

  /** Allow the bundle to be deleted again. */
  async close(): Promise<void> {
    // After a failed load, other files may still be writing the bytes that they have received.
    await Promise.allSettled(this.#reading);
    await this.release();
    // Without a network an older version may have been loaded although parts of the newest version are stored.
    if (this.#isNewest) await this.store.prune(this.location);
  }

  async #readAny(expected: Expected, signal: AbortSignal, onBytes: OnBytes): Promise<Bytes> {
    if (expected.file === MANIFEST_FILE) return (this.#manifest = await this.#readManifest(signal, onBytes));
    if (expected.sha256 === undefined) return readFile(this.source, expected, signal, onBytes);
    const stored = this.store.file(expected.sha256);
    const bytes = await readStored(stored, expected, onBytes);
    if (bytes !== null) return bytes;
    return this.store.whileAlone(expected.sha256, signal, async () => {
      // Another tab may have fetched it meanwhile.
      return (
        (await readStored(stored, expected, onBytes)) ?? (await this.#fetchSound(stored, expected, signal, onBytes))
      );
    });
  }

  /** The server's manifest; without a network the stored one. */
  async #readManifest(signal: AbortSignal, onBytes: OnBytes): Promise<Bytes> {
    try {
      const bytes = await readFile(this.source, { file: MANIFEST_FILE }, signal, onBytes);
      this.#isNewest = true;
      return bytes;
    } catch (error) {
      // If a server answers, its answer is final, even if the bundle is gone.
      const isOffline = error instanceof BundleError && !("status" in error.details);
      const stored = isOffline ? await this.store.manifest(this.location) : null;
      if (stored === null) throw error;
      return stored;
    }
  }

  /** Fetch a file. If it is damaged, fetch it once more from the start. Throws BundleError if it is damaged again. */
  async #fetchSound(stored: StoredFile, expected: Expected, signal: AbortSignal, onBytes: OnBytes): Promise<Bytes> {
    // A complete file here is damaged, or it would have been read.
    if ((await stored.part()).complete) await stored.remove();
    for (let again = false; ; again = true) {
      const counts = { network: 0, store: 0 };
      const count: OnBytes = (bytes, origin) => {
        counts[origin] += bytes;
        onBytes(bytes, origin);
      };
      const fetched = await this.#fetch(stored, expected, signal, count);
      if (!(fetched instanceof BundleError)) {
        await stored.complete();
        return fetched;
      }
      await stored.remove();
      count(-counts.network, "network");
      count(-counts.store, "store");
      if (again) throw fetched;
    }
  }

  /**
   * The bytes, or an error that states what is wrong with them. Throws if the file cannot be fetched completely; the
   * received bytes are then stored.
   */
  async #fetch(
    stored: StoredFile,
    expected: Expected,
    signal: AbortSignal,
    onBytes: OnBytes,
  ): Promise<Bytes | BundleError> {
    const { file, size } = expected;
    if (size === undefined) {
      // A kernel is too small to be worth resuming.
      const part = await this.#partOf(file, 0, null, signal);
      const bytes = await collect(fileChunks(this.source, expected, part, signal), expected, onBytes);
      const problem = await problemOf(bytes, expected);
      if (problem === null) {
        await stored.restart(null);
        await stored.append(0, bytes);
      }
      return problem ?? bytes;
    }
    const buffer = new Uint8Array(size);
    const part = await stored.part();
    let length = await copyInto(buffer, part.bytes);
    if (length > 0) onBytes(length, "store");
    if (length < size) {
      const rest = await this.#partOf(file, length, part.etag, signal);
      if (rest.start === 0) {
        if (length > 0) onBytes(-length, "store");
        length = 0;
        await stored.restart(rest.etag);
      }
      let written = length;
      const write = async (): Promise<void> => {
        const piece = buffer.subarray(written, length);
        if (piece.length > 0) await stored.append(written, piece);
        written = length;
      };
      try {
        for await (const chunk of fileChunks(this.source, expected, rest, signal)) {
          if (length + chunk.length > size) return wrongSize(file, length + chunk.length, size);
          buffer.set(chunk, length);
          length += chunk.length;
          onBytes(chunk.length, "network");
          if (length - written >= PIECE_BYTES) await write();
        }
      } finally {
        // However the download ended, the next load continues from here.
        await write();
      }
    }
    return (await problemOf(buffer.subarray(0, length), expected)) ?? buffer;
  }

  async #partOf(file: string, offset: number, etag: string | null, signal: AbortSignal): Promise<Part> {
    if (this.source.openAt === undefined) return openPart(this.source, file, signal);
    return unlessAborted(this.source.openAt(file, offset, etag, signal), signal, cancelPart);
  }
}

/**
 * A stored file, checked again, because disks have errors and SHA-256 takes less time than reading. Null if it is
 * missing or damaged.
 */
async function readStored(stored: StoredFile, expected: Expected, onBytes: OnBytes): Promise<Bytes | null> {
  const part = await stored.part();
  if (!part.complete) return null;
  const bytes = await part.bytes.arrayBuffer().then((buffer) => new Uint8Array(buffer), unreadable);
  if (bytes === null || (await problemOf(bytes, expected)) !== null) return null;
  onBytes(bytes.length, "store");
  return bytes;
}

/**
 * Copy the stored bytes of a file to the start of ``buffer``. Returns their count: 0 if they are too many or cannot be
 * read.
 */
async function copyInto(buffer: Bytes, part: Blob): Promise<number> {
  if (part.size > buffer.length) return 0;
  const reader = part.stream().getReader();
  let length = 0;
  for (;;) {
    const next = await reader.read().catch(unreadable);
    if (next === null) return 0;
    if (next.done) return length;
    buffer.set(next.value, length);
    length += next.value.length;
  }
}

/** Another tab may be replacing the file at this moment, or the disk has an error: the file then counts as missing. */
function unreadable(): null {
  return null;
}
