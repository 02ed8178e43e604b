import { expect, test } from "vitest";

import { BundleError } from "../../src/errors.js";
import { inParallel, readFile, sha256 } from "../../src/runtime/read_file.js";
import { bytesOf, memorySource } from "../letters_bundle.js";

const SIGNAL = new AbortController().signal;
const BYTES = bytesOf("a shard of weights, ".repeat(20));
const SOURCE = memorySource({ shard: BYTES });

test("a sound file comes whole, and its progress adds up", async () => {
  const counts: number[] = [];
  const expected = { file: "shard", size: BYTES.length, sha256: await sha256(BYTES) };
  const read = await readFile(SOURCE, expected, SIGNAL, (count) => counts.push(count));
  expect(read).toEqual(BYTES);
  expect(counts.length).toBeGreaterThan(1);
  expect(counts.reduce((sum, count) => sum + count, 0)).toBe(BYTES.length);
});

test("a file of unknown size is read to its end", async () => {
  expect(await readFile(SOURCE, { file: "shard" }, SIGNAL)).toEqual(BYTES);
});

test("a flipped bit is a BundleError with both hashes", async () => {
  const flipped = BYTES.slice();
  flipped[7] = (flipped[7] ?? 0) ^ 1;
  const expected = { file: "shard", size: BYTES.length, sha256: await sha256(BYTES) };
  const error = await readFile(memorySource({ shard: flipped }), expected, SIGNAL).catch((error: unknown) => error);
  expect(error).toBeInstanceOf(BundleError);
  expect(error).toMatchObject({ code: "bundle_error", details: { file: "shard", expected: expected.sha256, found: await sha256(flipped) } });
  expect((error as BundleError).message).toMatch(/^shard: has SHA-256 .*upload or compile the bundle again/);
});

test("a truncated file is a BundleError with both sizes", async () => {
  const error = await readFile(SOURCE, { file: "shard", size: BYTES.length + 1 }, SIGNAL).catch((error: unknown) => error);
  expect(error).toMatchObject({ code: "bundle_error", details: { file: "shard", found: BYTES.length, expected: BYTES.length + 1 } });
});

test("a file that is too long is refused before it is read whole", async () => {
  await expect(readFile(SOURCE, { file: "shard", size: 150 }, SIGNAL)).rejects.toThrow("shard: has at least 200 bytes, the manifest says 150");
});

test("an abort ends a download with its reason", async () => {
  const controller = new AbortController();
  const reading = readFile(SOURCE, { file: "shard" }, controller.signal, () => {
    controller.abort();
  });
  await expect(reading).rejects.toHaveProperty("name", "AbortError");
});

test("tasks run in parallel up to the limit", async () => {
  let running = 0;
  let most = 0;
  const seen: number[] = [];
  await inParallel([1, 2, 3, 4, 5], 2, async (item) => {
    running++;
    most = Math.max(most, running);
    await Promise.resolve();
    seen.push(item);
    running--;
  });
  expect(most).toBe(2);
  expect(seen.sort()).toEqual([1, 2, 3, 4, 5]);
});
