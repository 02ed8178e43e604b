// Saved sessions in this origin's file system: one file for each session, with the messages as JSON, followed by the
// keys and values.

import { StorageError } from "../errors.js";
import type { Bytes } from "../runtime/source.js";
import type { ChatMessage } from "../generation.js";
import type { Folder } from "./opfs.js";
import { filesOf, openFolder, writeFile } from "./opfs.js";

const ROOT = "nearfar-sessions";
const SESSIONS = "sessions";
const FORMAT = 1;

/**
 * ``tokenIds`` are the tokens whose keys and values are saved, without the first ``deadPages`` of each page group,
 * which lie behind the window. Sessions that were saved before there were groups have no ``deadPages``. ``adapter`` is
 * the id of the LoRA adapter that computed the keys and values; "" for none.
 */
export interface SessionRecord {
  readonly bundle: string;
  readonly activation: string;
  readonly messages: readonly ChatMessage[];
  readonly tokenIds: readonly number[];
  readonly deadPages?: readonly number[];
  readonly adapter?: string;
}

export interface SavedSession {
  readonly record: SessionRecord;
  readonly keysAndValues: Bytes;
}

/** Where sessions are saved, by name. Throws StorageError. */
export interface SessionStorage {
  write(name: string, record: SessionRecord, keysAndValues: Bytes): Promise<void>;
  read(name: string): Promise<SavedSession>;
}

/** A session as the bytes of one file. */
export function packSession(record: SessionRecord, keysAndValues: Bytes): Bytes {
  const header = new TextEncoder().encode(JSON.stringify({ format: FORMAT, ...record }));
  const bytes = new Uint8Array(4 + header.length + keysAndValues.length);
  new DataView(bytes.buffer).setUint32(0, header.length, true);
  bytes.set(header, 4);
  bytes.set(keysAndValues, 4 + header.length);
  return bytes;
}

/** Throws StorageError for bytes that are not a session in this format. */
export function unpackSession(name: string, bytes: Bytes): SavedSession {
  const length = bytes.length < 4 ? 0 : new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  try {
    const record = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length))) as SessionRecord & {
      format: number;
    };
    if (record.format !== FORMAT) throw new Error(`format ${record.format}`);
    return { record, keysAndValues: bytes.slice(4 + length) };
  } catch (error) {
    throw new StorageError(
      `The saved session '${name}' cannot be read; save it again`,
      { session: name },
      { cause: error },
    );
  }
}

export function noSuchSession(name: string): StorageError {
  return new StorageError(`No session '${name}' is saved here; save one first`, { session: name });
}

/** The session storage of the browser. Throws StorageError if it has none. */
export async function browserSessions(): Promise<SessionStorage> {
  const store = await SessionStore.open();
  if (store === null)
    throw new StorageError(
      "This browser has no origin private file system here, so sessions cannot be saved; use a current browser, " +
        "and not a private window",
    );
  return store;
}

export class SessionStore implements SessionStorage {
  private constructor(
    private readonly root: Folder,
    private readonly folder: Folder,
  ) {}

  /** Null if this browser, or its private mode, has no such file system. */
  static async open(): Promise<SessionStore | null> {
    const root = await openFolder(ROOT);
    return root === null ? null : new SessionStore(root, await root.getDirectoryHandle(SESSIONS, { create: true }));
  }

  /** Throws StorageError if there is no space. */
  async write(name: string, record: SessionRecord, keysAndValues: Bytes): Promise<void> {
    await writeFile(this.folder, encodeURIComponent(name), packSession(record, keysAndValues));
  }

  /** Throws StorageError if no session has this name, or if it cannot be read. */
  async read(name: string): Promise<SavedSession> {
    const file = (await filesOf(this.root, SESSIONS))?.get(encodeURIComponent(name));
    if (file === undefined) throw noSuchSession(name);
    return unpackSession(name, new Uint8Array(await file.arrayBuffer()));
  }
}
