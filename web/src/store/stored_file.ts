// One file of the store, named by its SHA-256: a folder of pieces, each named by its offset. Bytes are appended as they come and are safe once a
// piece is written, so a closed tab loses little. An empty file "complete" says that the whole was checked.
//
// Pieces instead of one file, because a file that is open for appending is copied whole each time that it is opened: a shard of 32 MB written 4 MB
// at a time took 0.13 s as pieces and 0.7 s as one file (Chromium 156, 2 cores of an AMD EPYC).

import type { Bytes } from "../runtime/source.js";
import type { Folder } from "./opfs.js";
import { filesOf, remove, writeFile } from "./opfs.js";

/** What a closed tab loses at most, of each file that it was downloading. */
export const PIECE_BYTES = 4 << 20;

const COMPLETE = "complete";
const ETAG = "etag";

/** What is there of a file: its first bytes, up to the first gap. ``etag`` is the version on the server that they come from. */
export interface StoredPart {
  readonly bytes: Blob;
  readonly etag: string | null;
  readonly complete: boolean;
}

export class StoredFile {
  constructor(
    private readonly folder: Folder,
    readonly sha256: string,
  ) {}

  async part(): Promise<StoredPart> {
    const files = (await filesOf(this.folder, this.sha256)) ?? new Map<string, File>();
    const pieces: File[] = [];
    let length = 0;
    for (;;) {
      const piece = files.get(`${length}`);
      // A piece without bytes was cut off while it was made.
      if (piece === undefined || piece.size === 0) break;
      pieces.push(piece);
      length += piece.size;
    }
    const etag = (await files.get(ETAG)?.text()) ?? "";
    return { bytes: new Blob(pieces), etag: etag === "" ? null : etag, complete: files.has(COMPLETE) };
  }

  /** Write the next piece. Throws StorageError. */
  async append(offset: number, bytes: Bytes): Promise<void> {
    await this.#write(`${offset}`, bytes);
  }

  /** Forget what is there, and note the version that comes now. */
  async restart(etag: string | null): Promise<void> {
    await this.remove();
    if (etag !== null) await this.#write(ETAG, etag);
  }

  /** Its bytes are all there and were checked. */
  async complete(): Promise<void> {
    await this.#write(COMPLETE, "");
  }

  async remove(): Promise<void> {
    await remove(this.folder, this.sha256);
  }

  async #write(name: string, content: Bytes | string): Promise<void> {
    await writeFile(await this.folder.getDirectoryHandle(this.sha256, { create: true }), name, content);
  }
}
