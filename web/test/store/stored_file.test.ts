import { beforeEach, expect, test } from "vitest";

import { StoredFile } from "../../src/store/stored_file.js";
import { bytesOf } from "../letters_bundle.js";
import type { MemoryDisk } from "./memory_folder.js";
import { memoryDisk } from "./memory_folder.js";

let disk: MemoryDisk;
let file: StoredFile;

beforeEach(() => {
  disk = memoryDisk();
  file = new StoredFile(disk.root, "abc");
});

test("pieces become one file, up to the first gap", async () => {
  await file.restart('"v1"');
  await file.append(0, bytesOf("one, "));
  await file.append(5, bytesOf("two, "));
  await file.append(12, bytesOf("four"));
  const part = await file.part();
  expect(await part.bytes.text()).toBe("one, two, ");
  expect(part).toMatchObject({ etag: '"v1"', complete: false });
});

test("an empty piece is a gap", async () => {
  await file.append(0, bytesOf("one"));
  await file.append(3, new Uint8Array());
  expect((await file.part()).bytes.size).toBe(3);
});

test("a file that was never written, or was removed, is empty, and removing it again does nothing", async () => {
  expect(await file.part()).toMatchObject({ etag: null, complete: false });
  await file.append(0, bytesOf("one"));
  await file.complete();
  expect(await file.part()).toMatchObject({ complete: true });
  await file.remove();
  await file.remove();
  expect((await file.part()).bytes.size).toBe(0);
  expect(disk.files.size).toBe(0);
});

test.each(["QuotaExceededError", "InvalidStateError"])(
  "a lack of space, reported as %s, is a StorageError with the available bytes",
  async (fullError) => {
    disk.capacity = 1000;
    disk.fullError = fullError;
    await file.append(0, new Uint8Array(600));
    const error = await file.append(600, new Uint8Array(2000)).catch((error: unknown) => error);
    expect(error).toMatchObject({ code: "storage_error", details: { neededBytes: 2000 } });
    const { availableBytes } = (error as { details: { availableBytes: number } }).details;
    expect(Math.abs(availableBytes - 400)).toBeLessThanOrEqual(2);
    expect((await file.part()).bytes.size).toBe(600);
    expect([...disk.files.keys()].filter((name) => name.includes("room-"))).toEqual([]);
  },
);

test("any other error of a write is a StorageError with its message", async () => {
  disk.root.getFileHandle = () => Promise.reject(new DOMException("the disk is gone", "UnknownError"));
  disk.root.getDirectoryHandle = () => Promise.resolve(disk.root);
  const error = await file.append(0, bytesOf("one")).catch((error: unknown) => error);
  expect(error).toMatchObject({ code: "storage_error", details: { file: "0" } });
  expect((error as Error).message).toContain("cannot be written (the disk is gone)");
});
