// Indexes in the origin private file system. Each save writes the new documents as a segment and then the list of
// segments, which is replaced atomically: a tab that closes in between leaves the index as it was.

import { RequestError, StorageError, messageOf } from "../errors.js";
import { sha256 } from "../runtime/read_file.js";
import type { Folder } from "../store/opfs.js";
import { whileHeld } from "../store/locks.js";
import { filesOf, openFolder, remove, writeFile } from "../store/opfs.js";
import type { Segment } from "./segment.js";
import { packSegment, unpackSegment } from "./segment.js";
import type { VectorType } from "./vectors.js";

const ROOT = "nearfar-indexes";
const LIST = "index.json";
const FORMAT = 1;

/** What every vector of an index has in common. */
export interface IndexKind {
  /** The identity of the embedding model. */
  readonly model: string;
  readonly dimensions: number;
  readonly type: VectorType;
}

/** One file, with the ids of its documents that still belong to the index. */
export interface SegmentEntry {
  readonly file: string;
  readonly sha256: string;
  readonly documents: readonly string[];
}

export interface SavedIndex extends IndexKind {
  readonly format: number;
  /** Changes with every save. */
  readonly version: string;
  readonly segments: readonly SegmentEntry[];
}

export class IndexStore {
  private constructor(
    private readonly root: Folder,
    private readonly locks: LockManager | undefined,
  ) {}

  /** Throws StorageError if this browser, or its private mode, has no file system for pages. */
  static async open(root?: Folder, locks?: LockManager): Promise<IndexStore> {
    const folder = root ?? (await openFolder(ROOT));
    if (folder === null)
      throw new StorageError(
        "This browser has no origin private file system here, so an index cannot be saved; use a current browser, " +
          "and not a private window, or open the index with store: false",
      );
    return new IndexStore(folder, locks ?? browserLocks());
  }

  /** The names of the saved indexes. */
  async list(): Promise<string[]> {
    const names: string[] = [];
    for await (const folder of this.root.keys()) {
      if ((await filesOf(this.root, folder))?.has(LIST) === true) names.push(decodeURIComponent(folder));
    }
    return names.sort();
  }

  async delete(name: string): Promise<void> {
    await this.#locked(name, () => remove(this.root, folderOf(name)));
  }

  /** Null if no index has this name. Throws StorageError if it cannot be read. */
  async read(name: string): Promise<SavedIndex | null> {
    const file = (await filesOf(this.root, folderOf(name)))?.get(LIST);
    if (file === undefined || file.size === 0) return null;
    try {
      const saved = JSON.parse(await file.text()) as SavedIndex;
      if (saved.format !== FORMAT) throw new Error(`it has format ${saved.format}`);
      return saved;
    } catch (error) {
      throw unreadable(name, error);
    }
  }

  /** Throws StorageError if the segment is missing or damaged. */
  async readSegment(name: string, { file, sha256: expected }: SegmentEntry): Promise<Segment> {
    const found = (await filesOf(this.root, folderOf(name)))?.get(file);
    try {
      if (found === undefined) throw new Error(`${file} is missing`);
      const bytes = new Uint8Array(await found.arrayBuffer());
      if ((await sha256(bytes)) !== expected) throw new Error(`${file} has changed`);
      return unpackSegment(bytes);
    } catch (error) {
      throw unreadable(name, error);
    }
  }

  /**
   * Replace the version ``previous`` (null for none) by one with the segments ``kept`` and a new one of ``added``.
   * Throws StorageError if another tab or worker has saved the index meanwhile (with the detail ``savedElsewhere``), or
   * if there is no room.
   */
  async write(
    name: string,
    kind: IndexKind,
    previous: string | null,
    kept: readonly SegmentEntry[],
    added: Segment,
  ): Promise<SavedIndex> {
    return this.#locked(name, async () => {
      const current = await this.read(name);
      if ((current?.version ?? null) !== previous)
        throw new StorageError(
          `The index '${name}' was saved by another tab or worker; open it again, and repeat the changes`,
          { index: name, savedElsewhere: true },
        );
      const folder = await this.root.getDirectoryHandle(folderOf(name), { create: true });
      const segments = [...kept];
      if (added.documents.length > 0) {
        const bytes = packSegment(added);
        const file = `segment-${crypto.randomUUID()}`;
        await writeFile(folder, file, bytes);
        segments.push({ file, sha256: await sha256(bytes), documents: added.documents.map(({ id }) => id) });
      }
      const { model, dimensions, type } = kind;
      const saved = { format: FORMAT, version: crypto.randomUUID(), model, dimensions, type, segments };
      await writeFile(folder, LIST, JSON.stringify(saved));
      const used = new Set([LIST, ...segments.map(({ file }) => file)]);
      for (const file of (await filesOf(this.root, folderOf(name)))?.keys() ?? [])
        if (!used.has(file)) await remove(folder, file);
      return saved;
    });
  }

  async #locked<T>(name: string, task: () => Promise<T>): Promise<T> {
    return this.locks === undefined ? task() : await whileHeld(this.locks, `nearfar-index ${name}`, task);
  }
}

/** Undefined if there are no locks here; then only the versions of an index prevent that a tab overwrites another's. */
function browserLocks(): LockManager | undefined {
  return typeof navigator !== "undefined" && "locks" in navigator ? navigator.locks : undefined;
}

/** Throws RequestError for an empty name. */
function folderOf(name: string): string {
  if (name === "") throw new RequestError("The index has an empty name; give it a name", { param: "name" });
  // "." and ".." are not names of folders.
  return encodeURIComponent(name).replace(/^\.+$/, (dots) => "%2E".repeat(dots.length));
}

function unreadable(name: string, cause: unknown): StorageError {
  return new StorageError(
    `The saved index '${name}' cannot be read (${messageOf(cause)}); delete it, and add the documents again`,
    { index: name },
    { cause },
  );
}
