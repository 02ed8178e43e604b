// The store of bundles in this origin's file system. It has two folders. files/ holds files named by their SHA-256, so
// that bundles share equal files. bundles/ holds one record for each address, which lists the files of the bundle.
//
// A load holds a shared lock on its bundle; deleting the bundle needs the exclusive lock. Records are read and written
// under one lock, the lock of the index.

import { StorageError } from "../errors.js";
import { filesToLoad } from "../shared/files_to_load.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { sha256 } from "../runtime/read_file.js";
import type { Bytes } from "../runtime/source.js";
import { bundleAddress } from "../runtime/source.js";
import { holdShared, whileFree, whileHeld } from "./locks.js";
import type { Folder } from "./opfs.js";
import { filesOf, openFolder, remove, writeFile } from "./opfs.js";
import { requireRoom } from "./quota.js";
import type { StoredPart } from "./stored_file.js";
import { StoredFile } from "./stored_file.js";

const FILES = "files";
const BUNDLES = "bundles";

/** The stored part of one bundle. */
export interface StoredBundle {
  readonly url: string;
  readonly model: string;
  /** The size on this device. Files that two bundles share count for each of them. */
  readonly bytes: number;
  /** Whether the bundle was loaded completely and all of its files are stored, so that it loads without a network. */
  readonly complete: boolean;
  readonly lastUsed: Date;
}

/**
 * ``size`` in bytes is null for kernels, because manifests do not contain their sizes; a device needs only some of
 * them.
 */
interface FileReference {
  readonly sha256: string;
  readonly size: number | null;
}

/**
 * ``files`` are the files of the newest manifest, ``older`` those of earlier manifests only. ``manifest`` is the
 * SHA-256 of the last manifest that was loaded completely.
 */
interface BundleRecord {
  readonly url: string;
  readonly model: string;
  readonly lastUsed: number;
  readonly manifest: string | null;
  readonly files: readonly FileReference[];
  readonly older: readonly FileReference[];
}

export class BundleStore {
  private constructor(
    private readonly root: Folder,
    private readonly files: Folder,
    private readonly bundles: Folder,
    private readonly locks: LockManager,
  ) {}

  /** The store of this name; null if this browser, or its private mode, lacks such a file system or locks. */
  static async open(name = "nearfar"): Promise<BundleStore | null> {
    const root = await openFolder(name);
    return root === null || !("locks" in navigator) ? null : BundleStore.at(root, navigator.locks);
  }

  /** The store in a folder. */
  static async at(root: Folder, locks: LockManager): Promise<BundleStore> {
    const folder = (name: string): Promise<Folder> => root.getDirectoryHandle(name, { create: true });
    return new BundleStore(root, await folder(FILES), await folder(BUNDLES), locks);
  }

  /** All bundles with stored files, the most recently used first. */
  async list(): Promise<StoredBundle[]> {
    const listed = await Promise.all((await this.#records()).map((record) => this.#describe(record)));
    // If a load failed for lack of space, only its record is stored.
    return listed
      .filter(({ bytes }) => bytes > 0)
      .sort((one, other) => other.lastUsed.getTime() - one.lastUsed.getTime());
  }

  /**
   * Delete a bundle, except files that another bundle also uses. False if nothing is stored for this address. Throws
   * StorageError while the bundle is being loaded.
   */
  async delete(url: string | URL): Promise<boolean> {
    const { href } = bundleAddress(url);
    return this.#withIndex(async () => {
      const records = await this.#records();
      const record = records.find((candidate) => candidate.url === href);
      if (record === undefined) return false;
      await this.#whileUnused([record], async () => {
        const others = records.filter((candidate) => candidate !== record);
        await this.#removeFiles([...record.files, ...record.older], others);
        await remove(this.bundles, await recordName(href));
      });
      return true;
    });
  }

  /** Delete all bundles. Throws StorageError while one of them is being loaded. */
  async clear(): Promise<void> {
    await this.#withIndex(async () => {
      await this.#whileUnused(await this.#records(), async () => {
        for (const folder of [this.files, this.bundles]) {
          const names: string[] = [];
          for await (const name of folder.keys()) names.push(name);
          for (const name of names) await remove(folder, name);
        }
      });
    });
  }

  file(sha256: string): StoredFile {
    return new StoredFile(this.files, sha256);
  }

  /**
   * Run the task while no other tab or worker has this file's lock. Throws the signal's reason if it is aborted while
   * waiting.
   */
  async whileAlone<T>(sha256: string, signal: AbortSignal, task: () => Promise<T>): Promise<T> {
    return whileHeld(this.locks, this.#lockOf("file", sha256), task, signal);
  }

  /** Prevent a bundle from being deleted until the returned function is called. Throws the signal's reason. */
  async hold(url: string, signal: AbortSignal): Promise<() => Promise<void>> {
    return holdShared(this.locks, this.#lockOf("bundle", url), signal);
  }

  /** The last manifest that was loaded completely, or null. */
  async manifest(url: string): Promise<Bytes | null> {
    const hash = (await this.#record(url))?.manifest ?? null;
    return hash === null ? null : this.#readSound(hash);
  }

  /**
   * Record that a bundle is being loaded, so that its files are retained. Returns the number of missing bytes; throws
   * StorageError if there is no space for them.
   */
  async begin(url: string, manifest: AnyManifest, manifestBytes: Bytes): Promise<number> {
    const files = await referencesOf(manifest, manifestBytes);
    const known = new Set(files.map(({ sha256 }) => sha256));
    await this.#withIndex(async () => {
      const record = await this.#record(url);
      const older =
        record === null ? [] : [...record.files, ...record.older].filter(({ sha256 }) => !known.has(sha256));
      await this.#write({
        url,
        model: manifest.model,
        lastUsed: Date.now(),
        manifest: record?.manifest ?? null,
        files,
        older,
      });
    });
    // The first file is the manifest, which is already loaded.
    const missing = files
      .slice(1)
      .map(async (file) => Math.max(0, (file.size ?? 0) - (await this.#part(file)).bytes.size));
    const missingBytes = sum(await Promise.all(missing));
    await requireRoom(this.files, missingBytes);
    return missingBytes;
  }

  /**
   * Record that a load is complete: from now on the bundle loads without a network. True the first time. Throws
   * StorageError.
   */
  async finish(url: string, manifestBytes: Bytes): Promise<boolean> {
    const manifest = await sha256(manifestBytes);
    const stored = this.file(manifest);
    await this.whileAlone(manifest, new AbortController().signal, async () => {
      if ((await this.#readSound(manifest)) !== null) return;
      await stored.restart(null);
      await stored.append(0, manifestBytes);
      await stored.complete();
    });
    return this.#withIndex(async () => {
      const record = await this.#record(url);
      if (record === null) return false;
      await this.#write({ ...record, manifest, lastUsed: Date.now() });
      return record.manifest === null;
    });
  }

  /**
   * Delete the files that only older versions of a bundle use, if the newest version was loaded completely and no load
   * is running.
   */
  async prune(url: string): Promise<void> {
    await this.#withIndex(async () => {
      const records = await this.#records();
      const record = records.find((candidate) => candidate.url === url);
      if (
        record === undefined ||
        record.older.length === 0 ||
        !record.files.some(({ sha256 }) => sha256 === record.manifest)
      )
        return;
      const pruned = { ...record, older: [] };
      const prune = async (): Promise<void> => {
        await this.#removeFiles(record.older, [...records.filter((candidate) => candidate !== record), pruned]);
        await this.#write(pruned);
      };
      await this.#whileUnused([record], prune).catch((error: unknown) => {
        // The load that is running prunes when it ends.
        if (!(error instanceof StorageError)) throw error;
      });
    });
  }

  /** Run the task while no other tab or worker changes records. */
  async #withIndex<T>(task: () => Promise<T>): Promise<T> {
    return whileHeld(this.locks, this.#lockOf("index", ""), task);
  }

  /** Run the task while no load uses these bundles. It never waits, so it may be called while the index is locked. */
  async #whileUnused(records: readonly BundleRecord[], task: () => Promise<void>): Promise<void> {
    const names = records.map(({ url }) => this.#lockOf("bundle", url));
    await whileFree(this.locks, names, task, (index) => {
      const url = records[index]?.url ?? "";
      return new StorageError(
        `${url}: is being loaded, in this tab or another; wait until it is ready or abort it, then delete it`,
        { url },
      );
    });
  }

  async #removeFiles(files: readonly FileReference[], others: readonly BundleRecord[]): Promise<void> {
    const used = new Set(others.flatMap(({ files, older }) => [...files, ...older]).map(({ sha256 }) => sha256));
    for (const { sha256 } of files) if (!used.has(sha256)) await this.file(sha256).remove();
  }

  async #describe({ url, model, files, older, manifest, lastUsed }: BundleRecord): Promise<StoredBundle> {
    const parts = await Promise.all(files.map((file) => this.#part(file)));
    const before = await Promise.all(older.map((file) => this.#part(file)));
    const complete =
      files.every(({ size }, index) => size === null || parts[index]?.complete) &&
      files.some(({ sha256 }) => sha256 === manifest);
    return {
      url,
      model,
      bytes: sum([...parts, ...before].map(({ bytes }) => bytes.size)),
      complete,
      lastUsed: new Date(lastUsed),
    };
  }

  async #readSound(hash: string): Promise<Bytes | null> {
    const { bytes, complete } = await this.file(hash).part();
    const read = new Uint8Array(await bytes.arrayBuffer());
    return complete && (await sha256(read)) === hash ? read : null;
  }

  async #part({ sha256 }: FileReference): Promise<StoredPart> {
    return this.file(sha256).part();
  }

  async #records(): Promise<BundleRecord[]> {
    const texts = await Promise.all(
      [...((await filesOf(this.root, BUNDLES))?.values() ?? [])].map((file) => file.text()),
    );
    return texts.map(parseRecord).filter((record) => record !== null);
  }

  async #record(url: string): Promise<BundleRecord | null> {
    return (await this.#records()).find((record) => record.url === url) ?? null;
  }

  async #write(record: BundleRecord): Promise<void> {
    await writeFile(this.bundles, await recordName(record.url), JSON.stringify(record));
  }

  #lockOf(kind: "index" | "bundle" | "file", name: string): string {
    return `${this.root.name}/${kind}/${name}`;
  }
}

async function recordName(url: string): Promise<string> {
  return `${await sha256(new TextEncoder().encode(url))}.json`;
}

/** Null for a record that was not written completely: its bundle then counts as not stored. */
function parseRecord(text: string): BundleRecord | null {
  try {
    return JSON.parse(text) as BundleRecord;
  } catch {
    return null;
  }
}

/** The manifest's reference is the first. */
async function referencesOf(manifest: AnyManifest, manifestBytes: Bytes): Promise<FileReference[]> {
  const sized = filesToLoad(manifest).map(({ sha256, size }) => ({ sha256, size }));
  const kernels = Object.values("kernels" in manifest ? manifest.kernels : {}).map(({ sha256 }) => ({
    sha256,
    size: null,
  }));
  const all = [{ sha256: await sha256(manifestBytes), size: manifestBytes.length }, ...sized, ...kernels];
  // Two names may refer to the same bytes.
  return [...new Map(all.map((reference) => [reference.sha256, reference])).values()];
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
