import { afterEach, expect, test, vi } from "vitest";

import { BundleError } from "../../src/errors.js";
import { pause } from "../../src/runtime/abort.js";
import { inParallel, readFile, sha256 } from "../../src/runtime/read_file.js";
import type { Part, Source } from "../../src/runtime/source.js";
import { bytesOf, memorySource } from "../letters_bundle.js";

const SIGNAL = new AbortController().signal;
const BYTES = bytesOf("a shard of weights, ".repeat(20));
const SOURCE = memorySource({ shard: BYTES });

afterEach(() => {
  vi.useRealTimers();
});

test("a valid file is read completely, and its progress adds up", async () => {
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
  expect(error).toMatchObject({
    code: "bundle_error",
    details: { file: "shard", expected: expected.sha256, found: await sha256(flipped) },
  });
  expect((error as BundleError).message).toMatch(/^shard: has SHA-256 .*upload or compile the bundle again/);
});

test("a truncated file is a BundleError with both sizes", async () => {
  const error = await readFile(SOURCE, { file: "shard", size: BYTES.length + 1 }, SIGNAL).catch(
    (error: unknown) => error,
  );
  expect(error).toMatchObject({
    code: "bundle_error",
    details: { file: "shard", found: BYTES.length, expected: BYTES.length + 1 },
  });
});

test("a file that is too long is refused before it is read completely", async () => {
  await expect(readFile(SOURCE, { file: "shard", size: 150 }, SIGNAL)).rejects.toThrow(
    "shard: has at least 200 bytes, the manifest says 150",
  );
});

test("an abort ends a download with its reason", async () => {
  const controller = new AbortController();
  const reading = readFile(SOURCE, { file: "shard" }, controller.signal, () => {
    controller.abort();
  });
  await expect(reading).rejects.toHaveProperty("name", "AbortError");
});

test("an abort ends a download from a source that hangs and ignores the signal, and closes its stream", async () => {
  let cancelled = 0;
  const stream = (): ReadableStream<Uint8Array> =>
    new ReadableStream({
      cancel: () => {
        cancelled++;
      },
    });
  for (const open of [
    () => Promise.resolve(stream()),
    () => new Promise<ReadableStream<Uint8Array>>(() => undefined),
    () => pause(30, SIGNAL).then(stream),
  ]) {
    await expect(
      readFile({ location: "hangs", open }, { file: "shard" }, AbortSignal.timeout(10)),
    ).rejects.toHaveProperty("name", "TimeoutError");
  }
  await pause(40, SIGNAL);
  expect(cancelled).toBe(2);
});

/** Responds with 130 bytes from ``starts(offset)`` on, then breaks the connection; the last responses are complete. */
function breaking(
  starts: (offset: number) => number,
  breaks: number,
): { readonly source: Source; readonly offsets: number[] } {
  const offsets: number[] = [];
  const openAt = (_: string, offset: number): Promise<Part> => {
    const start = starts(offset);
    const isWhole = offsets.push(offset) > breaks;
    const stream = new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(BYTES.slice(start, isWhole ? undefined : offset + 130));
        if (isWhole) controller.close();
      },
      pull(controller) {
        controller.error(new TypeError("connection reset"));
      },
    });
    return Promise.resolve({ stream, start, etag: null });
  };
  return { offsets, source: { location: "breaks", open: async (file) => (await openAt(file, 0)).stream, openAt } };
}

test.each<[string, (offset: number) => number]>([
  ["goes on where it stopped", (offset) => offset],
  ["starts again on a server without ranges, whose bytes count once", () => 0],
])("a connection that breaks %s", async (_, starts) => {
  const counts: number[] = [];
  const { source, offsets } = breaking(starts, 2);
  const expected = { file: "shard", size: BYTES.length, sha256: await sha256(BYTES) };
  expect(await readFile(source, expected, SIGNAL, (count) => counts.push(count))).toEqual(BYTES);
  expect(offsets).toEqual([0, 130, 260]);
  expect(Math.min(...counts)).toBeGreaterThan(0);
  expect(counts.reduce((sum, count) => sum + count, 0)).toBe(BYTES.length);
});

test("a connection that breaks repeatedly fails after five retries, each after a longer pause", async () => {
  vi.useFakeTimers();
  const times: number[] = [];
  const dead: Source = {
    location: "dead",
    open: () =>
      Promise.resolve(
        new ReadableStream({
          start: (controller) => {
            controller.error(new TypeError("connection reset"));
          },
        }),
      ),
    openAt: () => (times.push(Date.now() - start), Promise.reject(new BundleError("no network"))),
  };
  const start = Date.now();
  const reading = readFile(dead, { file: "shard", size: 400 }, SIGNAL).catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(8000);
  expect(await reading).toMatchObject({ message: "no network" });
  expect(times).toEqual([250, 750, 1750, 3750, 7750]);
});

test("a server that refuses the rest gets no further request, and an abort ends the pause", async () => {
  const { source } = breaking((offset) => offset, 9);
  const refusing: Source = { ...source, openAt: () => Promise.reject(new BundleError("gone", { status: 404 })) };
  await expect(readFile(refusing, { file: "shard", size: 400 }, SIGNAL)).rejects.toThrow("gone");
  // The pause of 250 ms never ends by itself, because no clock runs after 100 ms.
  vi.useFakeTimers();
  const controller = new AbortController();
  const reading = readFile(source, { file: "shard", size: 400 }, controller.signal).catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(100);
  controller.abort();
  expect(await reading).toMatchObject({ name: "AbortError" });
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
  expect(seen.sort((a, b) => a - b)).toEqual([1, 2, 3, 4, 5]);
});
