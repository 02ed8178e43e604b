// An app's file system on Node, with a limited storage for tests.

import { appendFile, mkdir, open, rename, rm, stat, statfs } from "node:fs/promises";

import type { FileSystem } from "../src/file_system.js";

export interface NodeFiles extends FileSystem {
  /** All reads and writes, in order. */
  readonly calls: string[];
  free: number | null;
}

export function nodeFiles(documents: string): NodeFiles {
  const calls: string[] = [];
  const size = async (path: string): Promise<number | null> =>
    stat(path).then(
      (found) => found.size,
      () => null,
    );
  const files: NodeFiles = {
    documents,
    calls,
    free: null,
    size,
    async read(path, offset, length) {
      calls.push(`read ${path.slice(documents.length)}`);
      const file = await open(path);
      const bytes = new Uint8Array(length);
      const { bytesRead } = await file.read(bytes, 0, length, offset);
      await file.close();
      return bytes.subarray(0, bytesRead);
    },
    async append(path, bytes) {
      if (files.free !== null && (files.free -= bytes.length) < 0) throw new Error("ENOSPC");
      calls.push(`append ${path.slice(documents.length)}`);
      await appendFile(path, bytes);
    },
    makeFolder: async (path) => {
      await mkdir(path, { recursive: true });
    },
    move: rename,
    remove: async (path) => {
      await rm(path, { recursive: true, force: true });
    },
    freeBytes: async () => files.free ?? (await statfs(documents)).bavail * 4096,
  };
  return files;
}
