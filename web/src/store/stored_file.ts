// One file of the store, named by its SHA-256: a folder of pieces, each named by its offset. Bytes are appended as they
// arrive and are safe when their piece is written, so a closed tab loses little. An empty file "complete" records that
// the entire file was checked. It uses pieces instead of one file, because a file is copied entirely each time that it
// is opened for appending: a shard of 32 MB written 4 MB at a time took 0.13 s as pieces and 0.7 s as one file
// (Chromium 156, 2 cores of an AMD EPYC).

import type { Bytes } from "../runtime/source.js";
import type { Folder } from "./opfs.js";
import { filesOf, remove, writeFile } from "./opfs.js";

/** The maximum number of bytes of each file that a closed tab loses. */
export const PIECE_BYTES = 4 << 20;

const COMPLETE = "complete";
const ETAG = "etag";

/**
 * The stored bytes of a file, from the start to the first gap. ``etag`` is the version on the server from which they
 * come.
 */
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
      // The creation of an empty piece was interrupted.
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

  /** Delete the stored bytes, and record the version that is now downloaded. */
  async restart(etag: string | null): Promise<void> {
    await this.remove();
    if (etag !== null) await this.#write(ETAG, etag);
  }

  /** Record that all bytes are stored and were checked. */
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
