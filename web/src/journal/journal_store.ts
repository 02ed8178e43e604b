// Journals in this origin's file system: one folder for each answer, with the request, and what was generated since in
// parts, each written as a whole or not at all. The parts of one generation replace those of earlier ones.

import { StorageError } from "../errors.js";
import type { Folder } from "../store/opfs.js";
import { filesOf, openFolder, remove, writeFile } from "../store/opfs.js";
import type { Head, Part } from "./record.js";
import { merged, readHead, readPart } from "./record.js";

const ROOT = "nearfar-journals";
const REQUEST = "request";
const PART = /^(\d+)\.(\d+)$/;
/** Of a folder's name, in characters. */
const MOST_NAME = 250;

/** Where the next part is written. */
export interface Place {
  readonly generation: number;
  readonly part: number;
}

export interface StoredJournal {
  readonly head: Head;
  readonly all: Part;
  readonly next: Place;
}

export interface JournalSize {
  readonly bytes: number;
  readonly updatedMs: number;
}

export class JournalStore {
  constructor(
    private readonly root: Folder,
    private readonly locks: LockManager,
  ) {}

  /** Throws StorageError if this browser, or its private mode, stores no files here. */
  static async open(): Promise<JournalStore> {
    const root = await openFolder(ROOT);
    if (root === null || !("locks" in navigator))
      throw new StorageError(
        "This browser has no origin private file system or no locks here, so no answer can be kept; leave the id out, " +
          "or use a current browser over https, and not a private window",
      );
    return new JournalStore(root, navigator.locks);
  }

  /**
   * Holds a journal until the returned function is called, or this tab or worker ends. Throws StorageError (``code``:
   * "in_use") if another one holds it.
   */
  async hold(id: string): Promise<() => void> {
    return new Promise((resolve, reject) => {
      this.locks
        .request(lockOf(id), { ifAvailable: true }, async (lock) => {
          if (lock === null) throw inUse(id);
          await new Promise<void>(resolve);
        })
        .catch(reject);
    });
  }

  /** Whether a tab, a worker or this page holds it. */
  async isHeld(id: string): Promise<boolean> {
    const { held = [] } = await this.locks.query();
    return held.some(({ name }) => name === lockOf(id));
  }

  /** Null without a journal. Throws StorageError for one of another version, or that is damaged. */
  async read(id: string): Promise<StoredJournal | null> {
    const files = (await filesOf(this.root, folderOf(id))) ?? new Map<string, File>();
    const request = files.get(REQUEST);
    // The browser creates a file before it writes it.
    if (request === undefined || request.size === 0) return null;
    try {
      const head = readHead(await request.text(), id);
      const generations = [...files].flatMap(([name, { size }]) =>
        size > 0 ? [Number(PART.exec(name)?.[1] ?? 0)] : [],
      );
      const generation = Math.max(0, ...generations);
      const parts: Part[] = [];
      for (;;) {
        const file = files.get(`${generation}.${parts.length}`);
        if (file === undefined || file.size === 0) break;
        parts.push(readPart(await file.text()));
      }
      const all = merged(parts);
      return { head, all, next: { generation, part: parts.length } };
    } catch (error) {
      throw damaged(id, error);
    }
  }

  /** Throws StorageError. */
  async begin(head: Head): Promise<void> {
    await writeFile(await this.#folder(head.id), REQUEST, JSON.stringify(head));
  }

  /** ``replaces``: the part says all that earlier ones say. Returns the place of the next part. Throws StorageError. */
  async write(id: string, { generation, part }: Place, content: Part, replaces: boolean): Promise<Place> {
    const folder = await this.#folder(id);
    const place = replaces ? { generation: generation + 1, part: 0 } : { generation, part };
    await writeFile(folder, `${place.generation}.${place.part}`, JSON.stringify(content));
    if (replaces) for (let old = 0; old < part; old++) await remove(folder, `${generation}.${old}`);
    return { ...place, part: place.part + 1 };
  }

  /** Does nothing without a journal. */
  async delete(id: string): Promise<void> {
    await remove(this.root, folderOf(id));
  }

  async ids(): Promise<readonly string[]> {
    const ids: string[] = [];
    for await (const [name, { kind }] of this.root.entries()) if (kind === "directory") ids.push(idOf(name));
    return ids;
  }

  async size(id: string): Promise<JournalSize> {
    const files = [...((await filesOf(this.root, folderOf(id))) ?? new Map<string, File>()).values()];
    return {
      bytes: files.reduce((sum, { size }) => sum + size, 0),
      updatedMs: Math.max(0, ...files.map(({ lastModified }) => lastModified)),
    };
  }

  #folder(id: string): Promise<Folder> {
    return this.root.getDirectoryHandle(folderOf(id), { create: true });
  }
}

export function damaged(id: string, cause: unknown): StorageError {
  return new StorageError(
    `The answer '${id}' that is kept here cannot be read; delete it, and request it again`,
    { code: "damaged", id },
    { cause },
  );
}

/** Whether a text can be the id of an answer. */
export function isId(id: unknown): id is string {
  return typeof id === "string" && id !== "" && !/\p{Surrogate}/u.test(id) && folderOf(id).length <= MOST_NAME;
}

/** A prefix, because "." is no name of a folder. */
const folderOf = (id: string): string => `answer-${encodeURIComponent(id)}`;
const idOf = (folder: string): string => decodeURIComponent(folder.replace("answer-", ""));
const lockOf = (id: string): string => `nearfar-answer ${id}`;

function inUse(id: string): StorageError {
  return new StorageError(
    `Another tab or worker, or another request of this page, writes the answer '${id}'; wait until it ends`,
    { code: "in_use", id },
  );
}
