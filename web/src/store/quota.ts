// The room that the browser gives to this origin, tried out before a download instead of found out at its end.
//
// navigator.storage.estimate is not asked: against fingerprinting, Chromium tells every page the same 10 GiB, whatever it then allows. Instead a file
// is set to the length in question and thrown away, which writes nothing to a disk and takes a few milliseconds.

import { StorageError } from "../errors.js";
import type { Folder } from "./opfs.js";

// Halvings between none and what is needed: the room is known to a thousandth of the need.
const HALVINGS = 10;

/** Throws StorageError unless so many bytes more can be stored. */
export async function requireRoom(folder: Folder, neededBytes: number): Promise<void> {
  if (!(await hasRoom(folder, neededBytes))) throw await noRoom(folder, neededBytes);
}

/** False where the browser says that so many bytes are too many. Any other trouble shows when files are written. */
export async function hasRoom(folder: Folder, bytes: number): Promise<boolean> {
  if (bytes === 0) return true;
  // Other tabs may be trying at the same time.
  const name = `room-${crypto.randomUUID()}`;
  try {
    const writer = await (await folder.getFileHandle(name, { create: true })).createWritable();
    try {
      await writer.truncate(bytes);
    } finally {
      await writer.abort().catch(() => undefined);
    }
    return true;
  } catch (error) {
    return !isQuotaError(error);
  } finally {
    await folder.removeEntry(name).catch(() => undefined);
  }
}

/** The error for bytes that did not fit. */
export async function noRoom(folder: Folder, neededBytes: number, options?: ErrorOptions): Promise<StorageError> {
  const availableBytes = await roomBelow(folder, neededBytes);
  const message =
    `The bundle needs ${megabytes(neededBytes)} more of this browser's storage, which gives this page ${megabytes(availableBytes)}; ` +
    "free space on this device, delete a stored bundle (cache.list, cache.delete), or load with store: false, which keeps nothing";
  return new StorageError(message, { neededBytes, availableBytes }, options);
}

/** Ask that the browser does not clear this origin when space runs short. It may ask the user, so nothing waits for its answer. */
export function askToPersist(): void {
  // Workers have no such call, and Node, whose folders may hold a store, has no storage.
  if (typeof navigator !== "undefined" && "storage" in navigator && "persist" in navigator.storage)
    void navigator.storage.persist().catch(() => false);
}

async function roomBelow(folder: Folder, bytes: number): Promise<number> {
  let [low, high] = [0, bytes];
  for (let halving = 0; halving < HALVINGS; halving++) {
    const middle = Math.floor((low + high) / 2);
    if (await hasRoom(folder, middle)) low = middle;
    else high = middle;
  }
  return low;
}

function isQuotaError(error: unknown): boolean {
  return error instanceof DOMException && error.name === "QuotaExceededError";
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
