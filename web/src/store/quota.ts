// Checks before a download whether the browser has enough storage for this origin.
//
// navigator.storage.estimate is not used: against fingerprinting, Chromium reports 10 GiB to every page, whatever it
// then allows. Instead, a file is set to the required length and deleted, which writes nothing to a disk and takes a
// few milliseconds.

import { StorageError } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import type { Folder } from "./opfs.js";

// Halvings between 0 and the required size: the available space is known to a thousandth of it.
const HALVINGS = 10;

/** Throws StorageError unless ``neededBytes`` more bytes can be stored. */
export async function requireRoom(folder: Folder, neededBytes: number): Promise<void> {
  if (!(await hasRoom(folder, neededBytes))) throw await noRoom(folder, neededBytes);
}

/** False if the browser reports that ``bytes`` exceed its quota. Any other problem appears when files are written. */
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
    `The bundle needs ${formatBytes(neededBytes)} more of this browser's storage, ` +
    `and ${formatBytes(availableBytes)} are available; ` +
    "free space on this device, delete a stored bundle (cache.list, cache.delete), or load with store: false";
  return new StorageError(message, { neededBytes, availableBytes }, options);
}

/**
 * Request that the browser does not clear this origin when space runs short. The browser may ask the user, so nothing
 * waits for its answer.
 */
export function requestPersistence(): void {
  // Workers do not have this function, and Node has no navigator.storage.
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
