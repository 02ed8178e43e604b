import { beforeEach, expect, test } from "vitest";

import type { Manifest } from "../../src/runtime/manifest.js";
import { sha256 } from "../../src/runtime/read_file.js";
import { BundleStore } from "../../src/store/bundle_store.js";
import { bytesOf, lettersBundle } from "../letters_bundle.js";
import type { MemoryDisk } from "./memory_folder.js";
import { memoryDisk, memoryLocks } from "./memory_folder.js";

const SIGNAL = new AbortController().signal;
const A = "https://host/a/";
const B = "https://host/b/";

let disk: MemoryDisk;
let store: BundleStore;

beforeEach(async () => {
  disk = memoryDisk();
  store = await BundleStore.at(disk.root, memoryLocks());
});

/** A manifest whose shards have these contents. */
async function manifestOf(...shards: string[]): Promise<Manifest> {
  const entries = shards.map(async (text, index) => ({
    file: `weights/${index}.bin`,
    size: text.length,
    sha256: await sha256(bytesOf(text)),
  }));
  return lettersBundle({ shards: await Promise.all(entries), files: [], kernels: {} }).manifest;
}

/** Load a bundle: begin, store the shards, finish. */
async function load(url: string, ...shards: string[]): Promise<void> {
  const manifest = await manifestOf(...shards);
  await store.begin(url, manifest, bytesOf(JSON.stringify(manifest)));
  for (const text of shards) await put(text);
  await store.finish(url, bytesOf(JSON.stringify(manifest)));
  await store.prune(url);
}

async function put(text: string): Promise<void> {
  const file = store.file(await sha256(bytesOf(text)));
  await file.append(0, bytesOf(text));
  await file.complete();
}

async function has(text: string): Promise<boolean> {
  return (await store.file(await sha256(bytesOf(text))).part()).complete;
}

test("begin returns the missing bytes: none for a shard that another bundle has, and the rest of a part", async () => {
  await load(A, "shared shard", "shard of a");
  await store.file(await sha256(bytesOf("shard of b"))).append(0, bytesOf("shard"));
  const manifest = await manifestOf("shared shard", "shard of b");
  expect(await store.begin(B, manifest, bytesOf("{}"))).toBe(" of b".length);
});

test("a load without enough space is a StorageError before anything is fetched", async () => {
  disk.capacity = 5000;
  const manifest = await manifestOf("a".repeat(6000));
  await expect(store.begin(A, manifest, bytesOf("{}"))).rejects.toMatchObject({
    code: "storage_error",
    details: { neededBytes: 6000 },
  });
  expect(await store.list()).toEqual([]);
});

test("a bundle is complete after a complete load, and only then has a stored manifest", async () => {
  const manifest = await manifestOf("shard");
  await store.begin(A, manifest, bytesOf("{}"));
  await put("shard");
  expect(await store.list()).toMatchObject([{ url: A, model: "letters", bytes: 5, complete: false }]);
  expect(await store.manifest(A)).toBeNull();
  expect(await store.finish(A, bytesOf("{}"))).toBe(true);
  expect(await store.finish(A, bytesOf("{}"))).toBe(false);
  expect(await store.list()).toMatchObject([{ url: A, bytes: 7, complete: true }]);
  expect(await store.manifest(A)).toEqual(bytesOf("{}"));
});

test("deleting a bundle does not delete the files of another one", async () => {
  await load(A, "shared shard", "shard of a");
  await load(B, "shared shard", "shard of b");
  expect(await store.delete(A)).toBe(true);
  expect(await Promise.all(["shared shard", "shard of a", "shard of b"].map(has))).toEqual([true, false, true]);
  expect(await store.list()).toMatchObject([{ url: B, complete: true }]);
  expect(await store.delete(A)).toBe(false);
  expect(await store.delete("https://host/b")).toBe(true);
  expect(disk.files.size).toBe(0);
});

test("clear deletes everything", async () => {
  await load(A, "shared shard", "shard of a");
  await load(B, "shared shard", "shard of b");
  await store.clear();
  expect(await store.list()).toEqual([]);
  expect(disk.files.size).toBe(0);
});

test("a bundle that is being loaded is not deleted", async () => {
  await load(A, "shard");
  const holds = [await store.hold(A, SIGNAL), await store.hold(A, SIGNAL)];
  for (const release of holds) {
    await expect(store.delete(A)).rejects.toMatchObject({ code: "storage_error", details: { url: A } });
    await expect(store.clear()).rejects.toMatchObject({ code: "storage_error", details: { url: A } });
    await release();
  }
  expect(await store.delete(A)).toBe(true);
});

test("a new version replaces the old one after a complete load, and until then the old one loads", async () => {
  await load(A, "kept shard", "old shard");
  const old = await store.manifest(A);
  const manifest = await manifestOf("kept shard", "new shard");
  await store.begin(A, manifest, bytesOf(JSON.stringify(manifest)));
  await store.prune(A);
  expect(await store.manifest(A)).toEqual(old);
  expect(await has("old shard")).toBe(true);
  expect(await store.list()).toMatchObject([{ complete: false }]);
  await load(A, "kept shard", "new shard");
  expect(await Promise.all(["kept shard", "old shard", "new shard"].map(has))).toEqual([true, false, true]);
  expect(await store.list()).toMatchObject([{ complete: true }]);
  expect(await store.manifest(A)).toEqual(bytesOf(JSON.stringify(manifest)));
});

test.each([
  ["its newest version", ["shared shard", "new shard of b"]],
  ["an older version that still loads", ["shared shard"]],
])("a new version does not delete files that another bundle uses in %s", async (_, ofB) => {
  await load(B, ...ofB);
  if (ofB.length === 1) {
    // The newest version of B has not been loaded completely.
    const manifest = await manifestOf("later shard of b");
    await store.begin(B, manifest, bytesOf(JSON.stringify(manifest)));
  }
  await load(A, "shared shard", "old shard");
  await load(A, "new shard");
  expect(await Promise.all(["shared shard", "old shard", "new shard"].map(has))).toEqual([true, false, true]);
  expect(await store.manifest(B)).not.toBeNull();
});

test("an old version is retained while another tab loads it", async () => {
  await load(A, "old shard");
  const release = await store.hold(A, SIGNAL);
  await load(A, "new shard");
  expect(await has("old shard")).toBe(true);
  await release();
  await store.prune(A);
  expect(await has("old shard")).toBe(false);
});

test("a damaged stored manifest counts as missing until it is stored again", async () => {
  await load(A, "shard");
  const manifest = await store.manifest(A);
  const path = `nearfar/files/${await sha256(manifest ?? new Uint8Array())}/0`;
  disk.files.set(path, bytesOf("{}"));
  expect(await store.manifest(A)).toBeNull();
  await load(A, "shard");
  expect(await store.manifest(A)).toEqual(manifest);
});

test("an incompletely written record counts as missing", async () => {
  await load(A, "shard");
  const record = [...disk.files.keys()].find((name) => name.endsWith(".json")) ?? "";
  disk.files.set(record, new Uint8Array());
  expect(await store.list()).toEqual([]);
  await load(A, "shard");
  expect(await store.list()).toMatchObject([{ url: A, complete: true }]);
});
