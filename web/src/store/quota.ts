// The room that the browser gives to this origin, asked for before a download instead of found out at its end.

import { StorageError } from "../errors.js";

const ADVICE = "free space on this device, delete a stored model (cache.list, cache.delete), or load with store: false, which keeps nothing";

/** Throws StorageError unless so many bytes more can be stored. A browser that does not tell passes. */
export async function requireRoom(neededBytes: number): Promise<void> {
  const available = await availableBytes();
  if (available !== null && neededBytes > available) throw noRoomFor(neededBytes, available);
}

/** The error of a write for which there was no room. */
export async function noRoom(neededBytes: number, options?: ErrorOptions): Promise<StorageError> {
  return noRoomFor(neededBytes, await availableBytes(), options);
}

/** Ask that the browser does not clear this origin when space runs short. It may ask the user, so nothing waits for its answer. */
export function askToPersist(): void {
  // Workers have no such call.
  if (typeof navigator.storage.persist === "function") void navigator.storage.persist().catch(() => false);
}

async function availableBytes(): Promise<number | null> {
  if (typeof navigator === "undefined" || !("storage" in navigator) || typeof navigator.storage.estimate !== "function") return null;
  const { quota, usage } = await navigator.storage.estimate();
  return quota === undefined || usage === undefined ? null : Math.max(0, quota - usage);
}

function noRoomFor(neededBytes: number, availableBytes: number | null, options?: ErrorOptions): StorageError {
  const room = availableBytes === null ? "which the browser does not give this page" : `and the browser gives this page ${megabytes(availableBytes)}`;
  return new StorageError(`The bundle needs ${megabytes(neededBytes)} more storage, ${room}; ${ADVICE}`, { neededBytes, availableBytes }, options);
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
