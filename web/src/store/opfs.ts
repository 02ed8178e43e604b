// The origin private file system: folders and files of this page's origin. The stores use these functions to write
// files.

import { StorageError, messageOf } from "../errors.js";
import type { Bytes } from "../runtime/source.js";
import { hasRoom, noRoom } from "./quota.js";

export type Folder = FileSystemDirectoryHandle;

/**
 * A folder at the root, created if it is missing; null if this browser, or its private mode, has no such file system.
 */
export async function openFolder(name: string): Promise<Folder | null> {
  if (
    typeof navigator === "undefined" ||
    !("storage" in navigator) ||
    typeof navigator.storage.getDirectory !== "function"
  )
    return null;
  if (typeof FileSystemFileHandle === "undefined" || !("createWritable" in FileSystemFileHandle.prototype)) return null;
  try {
    return await (await navigator.storage.getDirectory()).getDirectoryHandle(name, { create: true });
  } catch {
    // Private windows of some browsers have the functions and refuse the call.
    return null;
  }
}

/** The current files of a folder, by name; null if the folder does not exist. */
export async function filesOf(parent: Folder, name: string): Promise<ReadonlyMap<string, File> | null> {
  return whereFound(async () => {
    const folder = await parent.getDirectoryHandle(name);
    const files = new Map<string, File>();
    for await (const [file, handle] of folder.entries()) {
      if (handle.kind === "file") files.set(file, await handle.getFile());
    }
    return files;
  });
}

/** Write a file atomically: it exists with all its bytes or not at all. Throws StorageError if it cannot be written. */
export async function writeFile(folder: Folder, name: string, content: Bytes | string): Promise<void> {
  try {
    const writer = await (await folder.getFileHandle(name, { create: true })).createWritable();
    try {
      await writer.write(content);
      await writer.close();
    } catch (error) {
      // Otherwise the temporary file would remain until the page is closed.
      await writer.abort().catch(() => undefined);
      throw error;
    }
  } catch (error) {
    // For a write beyond the quota, Chromium reports either that, or a broken pipe.
    if (!(await hasRoom(folder, content.length))) throw await noRoom(folder, content.length, { cause: error });
    throw new StorageError(
      `This browser's storage cannot be written (${messageOf(error)}); load the page again, or load with store: false`,
      { file: name },
      { cause: error },
    );
  }
}

/** Remove a file or a folder with its contents, if it exists. */
export async function remove(folder: Folder, name: string): Promise<void> {
  await whereFound(() => folder.removeEntry(name, { recursive: true }));
}

async function whereFound<T>(task: () => Promise<T>): Promise<T | null> {
  try {
    return await task();
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotFoundError") return null;
    throw error;
  }
}
