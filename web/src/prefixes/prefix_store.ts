// The prefixes that this origin's file system keeps: for each a file with a record as JSON and the pages, and one that
// counts its uses. Tabs share them under one lock. What is damaged, or not what its name says, is deleted.

import { remove, writeFile, filesOf, openFolder } from "../store/opfs.js";
import type { Folder } from "../store/opfs.js";
import { hasRoom } from "../store/quota.js";
import { whileHeld } from "../store/locks.js";
import { sha256 } from "../runtime/read_file.js";
import type { Bytes } from "../runtime/source.js";

const ROOT = "nearfar-prefixes";
const PREFIXES = "prefixes";
const PAGES = ".pages";
const USED = ".used";
/** Holds the time of the last `clear`. */
const CLEARED = "cleared";
const LOCK = "nearfar-prefixes";
const FORMAT = 2;
/** Of those that were used and are not kept, this many are remembered. */
const MOST_COUNTED = 64;

/**
 * What pages are valid for: the id of the bundle, and the device with its precision, or the bundle's own name for what
 * the compiler computed.
 */
export interface PrefixKey {
  readonly bundle: string;
  readonly device: string;
  readonly tokenIds: readonly number[];
}

/** The pages of a prefix, without the first ``deadPages`` of each page group. */
export interface PrefixPages {
  readonly deadPages: readonly number[];
  readonly keysAndValues: Bytes;
}

interface Use {
  readonly uses: number;
  readonly lastMs: number;
}

interface PrefixRecord extends PrefixKey {
  readonly format: number;
  readonly model: string;
  readonly deadPages: readonly number[];
  /** Of all else in the file. */
  readonly sha256: string;
}

/** A prefix that is kept on this device. */
export interface StoredPrefix {
  readonly model: string;
  readonly tokens: number;
  readonly bytes: number;
  readonly lastUsed: Date;
}

export class PrefixStore {
  constructor(
    private readonly root: Folder,
    private readonly locks: LockManager,
  ) {}

  /** Null if this browser, or its private mode, has no such file system or no locks. */
  static async open(): Promise<PrefixStore | null> {
    const root = await openFolder(ROOT);
    return root === null || !("locks" in navigator) ? null : new PrefixStore(root, navigator.locks);
  }

  /** The pages of a prefix; null if none are kept. */
  async read(key: PrefixKey): Promise<PrefixPages | null> {
    const name = await nameOf(key);
    const file = (await this.#files()).get(name + PAGES);
    // The browser creates a file before it writes it.
    if (file === undefined || file.size === 0) return null;
    const pages = await readSound(file, key).catch(() => null);
    await this.#locked(async (folder) => {
      if (pages === null) await this.#remove(folder, name);
      else await this.#use(folder, name, await this.#files());
    });
    return pages;
  }

  /** Count a use of a prefix that is not kept. Returns how many there were. Throws StorageError. */
  async count(key: PrefixKey): Promise<number> {
    const name = await nameOf(key);
    return this.#locked(async (folder) => {
      const files = await this.#files();
      const counted = (await this.#entries(files)).filter(({ size }) => size === 0);
      for (const { name } of counted.slice(0, -MOST_COUNTED)) await this.#remove(folder, name);
      return this.#use(folder, name, files);
    });
  }

  async has(key: PrefixKey): Promise<boolean> {
    return ((await this.#files()).get((await nameOf(key)) + PAGES)?.size ?? 0) > 0;
  }

  /**
   * Keep a prefix whose pages were read at a time, unless all were deleted since. Those that were not used for longest
   * are deleted until all fit in the budget. False if it does not fit, in the budget or in the browser's storage. Throws
   * StorageError.
   */
  async write(
    key: PrefixKey,
    model: string,
    { deadPages, keysAndValues }: PrefixPages,
    budgetBytes: number,
    readAtMs: number,
  ): Promise<boolean> {
    const unsealed = { ...key, model, deadPages };
    const record: PrefixRecord = { format: FORMAT, ...unsealed, sha256: await sealOf(unsealed, keysAndValues) };
    const bytes = pack(record, keysAndValues);
    if (bytes.length > budgetBytes) return false;
    const name = await nameOf(key);
    return this.#locked(async (folder) => {
      const files = await this.#files();
      if (Number((await files.get(CLEARED)?.text()) ?? 0) >= readAtMs) return false;
      const others = (await this.#entries(files)).filter((entry) => entry.name !== name && entry.size > 0);
      let total = others.reduce((sum, { size }) => sum + size, 0);
      for (const entry of others) {
        if (total + bytes.length <= budgetBytes) break;
        await this.#remove(folder, entry.name);
        total -= entry.size;
      }
      // The same size must remain free, so that what is kept is not in the way of a model.
      if (!(await hasRoom(folder, 2 * bytes.length))) return false;
      await writeFile(folder, name + PAGES, bytes);
      // What the compiler computed has no use that was counted, and must not be the first that goes.
      await this.#use(folder, name, files);
      return true;
    });
  }

  /** All prefixes, the most recently used first. What cannot be read is deleted. */
  async list(): Promise<StoredPrefix[]> {
    return this.#locked(async (folder) => {
      const files = await this.#files();
      const found: StoredPrefix[] = [];
      for (const { name, size, lastMs } of [...(await this.#entries(files))].reverse()) {
        const file = files.get(name + PAGES);
        if (file === undefined || size === 0) continue;
        const header = await readHeader(file).catch(() => null);
        if (header !== null) {
          const { model, tokenIds } = header.record;
          found.push({ model, tokens: tokenIds.length, bytes: size, lastUsed: new Date(lastMs) });
        } else {
          await this.#remove(folder, name);
        }
      }
      return found;
    });
  }

  /** Delete all prefixes, also those that a tab is about to keep. */
  async clear(): Promise<void> {
    await this.#locked(async (folder) => {
      for (const name of (await this.#files()).keys()) await remove(folder, name);
      await writeFile(folder, CLEARED, String(Date.now()));
    });
  }

  /** Those that were not used for longest first; ``size`` is 0 if only uses are counted. */
  async #entries(
    files: ReadonlyMap<string, File>,
  ): Promise<readonly { readonly name: string; readonly size: number; readonly lastMs: number }[]> {
    const names = new Set(
      [...files.keys()].flatMap((file) => (file === CLEARED ? [] : [file.slice(0, file.lastIndexOf("."))])),
    );
    const entries = [...names].map(async (name) => {
      const { lastMs } = await readUse(files.get(name + USED));
      return { name, size: files.get(name + PAGES)?.size ?? 0, lastMs };
    });
    return (await Promise.all(entries)).sort((one, other) => one.lastMs - other.lastMs);
  }

  async #use(folder: Folder, name: string, files: ReadonlyMap<string, File>): Promise<number> {
    const { uses, lastMs } = await readUse(files.get(name + USED));
    const use: Use = { uses: uses + 1, lastMs: Math.max(Date.now(), lastMs) };
    await writeFile(folder, name + USED, JSON.stringify(use));
    return use.uses;
  }

  async #files(): Promise<ReadonlyMap<string, File>> {
    return (await filesOf(this.root, PREFIXES)) ?? new Map<string, File>();
  }

  async #remove(folder: Folder, name: string): Promise<void> {
    for (const ending of [PAGES, USED]) await remove(folder, name + ending);
  }

  async #locked<T>(task: (folder: Folder) => Promise<T>): Promise<T> {
    const folder = await this.root.getDirectoryHandle(PREFIXES, { create: true });
    return whileHeld(this.locks, LOCK, () => task(folder));
  }
}

function nameOf({ bundle, device, tokenIds }: PrefixKey): Promise<string> {
  return sha256(new TextEncoder().encode(JSON.stringify([bundle, device, tokenIds])));
}

async function sealOf(
  { bundle, device, tokenIds, model, deadPages }: Omit<PrefixRecord, "format" | "sha256">,
  keysAndValues: Bytes,
): Promise<string> {
  const parts = [bundle, device, tokenIds, model, deadPages, await sha256(keysAndValues)];
  return sha256(new TextEncoder().encode(JSON.stringify(parts)));
}

/** A file that is missing or was not written completely counts as no use. */
async function readUse(file: File | undefined): Promise<Use> {
  try {
    const { uses, lastMs } = JSON.parse((await file?.text()) ?? "") as Use;
    if (Number.isInteger(uses) && Number.isFinite(lastMs)) return { uses, lastMs };
  } catch {
    // As below.
  }
  return { uses: 0, lastMs: 0 };
}

/** The length of the record, the record, and the pages. */
function pack(record: PrefixRecord, keysAndValues: Bytes): Bytes {
  const header = new TextEncoder().encode(JSON.stringify(record));
  const bytes = new Uint8Array(4 + header.length + keysAndValues.length);
  new DataView(bytes.buffer).setUint32(0, header.length, true);
  bytes.set(header, 4);
  bytes.set(keysAndValues, 4 + header.length);
  return bytes;
}

async function readHeader(file: File): Promise<{ readonly record: PrefixRecord; readonly end: number }> {
  const length = new DataView(await file.slice(0, 4).arrayBuffer()).getUint32(0, true);
  const record = JSON.parse(await file.slice(4, 4 + length).text()) as PrefixRecord;
  if (record.format !== FORMAT || !Array.isArray(record.tokenIds)) throw new Error(`format ${record.format}`);
  return { record, end: 4 + length };
}

/** Throws for a file that is not of this prefix, or whose pages are not those that were written. */
async function readSound(file: File, key: PrefixKey): Promise<PrefixPages> {
  const { record, end } = await readHeader(file);
  if ((await nameOf(record)) !== (await nameOf(key))) throw new Error("another prefix");
  const keysAndValues = new Uint8Array(await file.slice(end).arrayBuffer());
  if ((await sealOf(record, keysAndValues)) !== record.sha256) throw new Error("damaged");
  return { deadPages: record.deadPages, keysAndValues };
}
