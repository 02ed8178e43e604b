// The origin private file system: folders and files that belong to this page's origin alone. The runtime's store writes through these few functions.

import { StorageError, messageOf } from "../errors.js";
import type { Bytes } from "../runtime/source.js";
import { hasRoom, noRoom } from "./quota.js";

export type Folder = FileSystemDirectoryHandle;

/** A folder at the root, made where it is missing; null where this browser or its private mode has no such file system. */
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

/** The files of a folder, as they are now, by name; null where there is no such folder. */
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

/** Write a file whole: it is there with all its bytes or not at all. Throws StorageError where it cannot be written. */
export async function writeFile(folder: Folder, name: string, content: Bytes | string): Promise<void> {
  try {
    const writer = await (await folder.getFileHandle(name, { create: true })).createWritable();
    try {
      await writer.write(content);
      await writer.close();
    } catch (error) {
      // Else the temporary file would stay until the page is closed.
      await writer.abort().catch(() => undefined);
      throw error;
    }
  } catch (error) {
    // Chromium says of a write that goes beyond the quota now that, now that a pipe broke.
    if (!(await hasRoom(folder, content.length))) throw await noRoom(folder, content.length, { cause: error });
    throw new StorageError(
      `This browser's storage cannot be written (${messageOf(error)}); load the page again, or load with store: false, which keeps nothing`,
      { file: name },
      { cause: error },
    );
  }
}

/** Remove a file or a folder with all that is in it, where it is there. */
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
