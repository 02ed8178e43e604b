// Which prefixes are kept, which are deleted, and that nothing else is read.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { PrefixKey } from "../../src/prefixes/prefix_store.js";
import { PrefixStore } from "../../src/prefixes/prefix_store.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";

const BUDGET = 4000;
const keyOf = (first: number, changes: Partial<PrefixKey> = {}): PrefixKey => ({
  bundle: "bundle",
  device: "gpu float16",
  tokenIds: [first, 2, 3],
  ...changes,
});
const pages = (size = 1000, value = 7) => ({ deadPages: [0, 2], keysAndValues: new Uint8Array(size).fill(value) });

beforeEach(() => {
  vi.useFakeTimers({ now: 1000 });
});
afterEach(() => {
  vi.useRealTimers();
});

/** A moment later, so that uses are in order. */
const later = (): number => {
  vi.setSystemTime(Date.now() + 10);
  return Date.now();
};

/** The stores of two tabs over one disk. */
function tabs() {
  const [disk, locks] = [memoryDisk(), memoryLocks()];
  return { disk, one: new PrefixStore(disk.root, locks), other: new PrefixStore(disk.root, locks) };
}

const pathOf = (disk: ReturnType<typeof memoryDisk>): string =>
  [...disk.files.keys()].find((path) => path.endsWith(".pages")) ?? "";

test("a prefix that one tab keeps is read by another, byte for byte", async () => {
  const { one, other } = tabs();
  expect(await one.write(keyOf(1), "m", pages(), BUDGET, later())).toBe(true);
  expect(await other.read(keyOf(1))).toEqual(pages());
  expect(await other.list()).toEqual([
    { model: "m", tokens: 3, bytes: expect.any(Number) as number, lastUsed: new Date(1010) },
  ]);
});

test.each([
  ["another bundle", { bundle: "other" }],
  ["another device", { device: "gpu float32" }],
  ["other tokens", { tokenIds: [1, 2, 4] }],
  ["fewer tokens", { tokenIds: [1, 2] }],
])("a prefix of %s is not read", async (_, changes) => {
  const { one } = tabs();
  await one.write(keyOf(1), "m", pages(), BUDGET, later());
  expect(await one.read(keyOf(1, changes))).toBeNull();
  expect(await one.has(keyOf(1, changes))).toBe(false);
  expect(await one.has(keyOf(1))).toBe(true);
});

test("the prefix that was not used for longest goes first when the budget is full", async () => {
  const { one, other } = tabs();
  for (const first of [1, 2, 3]) await one.write(keyOf(first), "m", pages(), BUDGET, later());
  later();
  await other.read(keyOf(1));
  later();
  expect(await one.write(keyOf(4), "m", pages(), BUDGET, later())).toBe(true);
  const kept = await Promise.all([1, 2, 3, 4].map((first) => one.has(keyOf(first))));
  expect(kept).toEqual([true, false, true, true]);
  // Nothing goes for a prefix that does not fit at all.
  expect(await one.write(keyOf(5), "m", pages(BUDGET), BUDGET, later())).toBe(false);
  expect(await one.list()).toHaveLength(3);
});

test("a prefix that was never counted was used when it was written", async () => {
  const { one } = tabs();
  for (const first of [1, 2]) await one.count(keyOf(first));
  await one.write(keyOf(1), "m", pages(), BUDGET, later());
  await one.write(keyOf(2, { device: "compiler" }), "m", pages(), BUDGET, later());
  expect((await one.list()).map(({ lastUsed }) => lastUsed.getTime())).toEqual([1020, 1010]);
});

test("a prefix that the browser has too little room for is not kept", async () => {
  const { disk, one } = tabs();
  disk.capacity = 2000;
  expect(await one.write(keyOf(1), "m", pages(), BUDGET, later())).toBe(false);
  expect(pathOf(disk)).toBe("");
});

test.each<[string, (bytes: Uint8Array<ArrayBuffer>) => Uint8Array<ArrayBuffer>]>([
  ["a changed page", (bytes) => bytes.map((byte, index) => (index === bytes.length - 1 ? byte ^ 1 : byte))],
  ["a missing end", (bytes) => bytes.slice(0, -1)],
  ["a changed record", (bytes) => bytes.map((byte, index) => (index === 20 ? byte ^ 1 : byte))],
  [
    "another number of dead pages",
    (bytes) => {
      const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
      return Uint8Array.from(text.replace('"deadPages":[0,2]', '"deadPages":[1,1]'), (sign) => sign.charCodeAt(0));
    },
  ],
  ["only a start", (bytes) => bytes.slice(0, 3)],
  ["something else", () => new Uint8Array(64).fill(255)],
])("a prefix with %s is not used, and is deleted", async (_, damage) => {
  const { disk, one } = tabs();
  await one.write(keyOf(1), "m", pages(), BUDGET, later());
  const path = pathOf(disk);
  disk.files.set(path, damage(disk.files.get(path) ?? new Uint8Array()));
  expect(await one.read(keyOf(1))).toBeNull();
  expect(pathOf(disk)).toBe("");
  expect(await one.list()).toEqual([]);
});

test("the pages of another prefix under its name are not used, and are deleted", async () => {
  const { disk, one } = tabs();
  await one.write(keyOf(1), "m", pages(), BUDGET, later());
  const first = pathOf(disk);
  const foreign = disk.files.get(first) ?? new Uint8Array();
  await one.write(keyOf(2), "m", pages(1000, 8), BUDGET, later());
  const second = [...disk.files.keys()].find((path) => path.endsWith(".pages") && path !== first) ?? "";
  disk.files.set(second, foreign);
  expect(await one.read(keyOf(2))).toBeNull();
  expect(disk.files.has(second)).toBe(false);
  expect(await one.read(keyOf(1))).toEqual(pages());
});

test("a file that a crash left empty is not read", async () => {
  const { disk, one } = tabs();
  await one.write(keyOf(1), "m", pages(), BUDGET, later());
  disk.files.set(pathOf(disk), new Uint8Array());
  expect(await one.read(keyOf(1))).toBeNull();
  expect(await one.write(keyOf(1), "m", pages(), BUDGET, later())).toBe(true);
  expect(await one.read(keyOf(1))).toEqual(pages());
});

test("clear deletes all prefixes, and those that another tab read before and writes after it", async () => {
  const { disk, one, other } = tabs();
  await one.write(keyOf(1), "m", pages(), BUDGET, later());
  const before = later();
  later();
  await other.clear();
  expect(await one.write(keyOf(2), "m", pages(), BUDGET, before)).toBe(false);
  expect([...disk.files.keys()].map((path) => path.split("/").at(-1))).toEqual(["cleared"]);
  expect(await one.write(keyOf(2), "m", pages(), BUDGET, later())).toBe(true);
});

test("uses of two tabs are counted together, and of many unkept prefixes the latest are remembered", async () => {
  const { disk, one, other } = tabs();
  expect(await Promise.all([one.count(keyOf(1)), other.count(keyOf(1))])).toEqual([1, 2]);
  for (let first = 2; first < 100; first++) {
    later();
    await one.count(keyOf(first));
  }
  expect(disk.files.size).toBeLessThan(68);
  expect(await one.count(keyOf(99))).toBe(2);
  expect(await one.count(keyOf(1))).toBe(1);
});
