import { beforeEach, expect, test } from "vitest";

import { BundleError } from "../../src/errors.js";
import { loadManifest } from "../../src/runtime/load_manifest.js";
import type { Manifest } from "../../src/runtime/manifest.js";
import type { Expected, Part, Source } from "../../src/runtime/source.js";
import { sha256 } from "../../src/runtime/read_file.js";
import { BundleStore } from "../../src/store/bundle_store.js";
import { storedSource } from "../../src/store/stored_source.js";
import { bytesOf, lettersBundle, memorySource } from "../letters_bundle.js";
import type { MemoryDisk } from "./memory_folder.js";
import { memoryDisk, memoryLocks } from "./memory_folder.js";

const SIGNAL = new AbortController().signal;
const BYTES = bytesOf("a shard of weights, ".repeat(20));
const EXPECTED: Expected = { file: "shard", size: BYTES.length, sha256: await sha256(BYTES) };

/** A server with one file, in pieces of 100 bytes. It records its requests, and its next responses can fail. */
class Server implements Source {
  readonly location = "https://host/bundle/";
  readonly requests: (readonly [number, string | null])[] = [];
  bytes = BYTES;
  etag: string | null = '"v1"';
  ranges = true;
  /** The faults of the next responses: break the connection or end after a number of bytes, flip a bit, or refuse. */
  faults: (readonly ["cut" | "end", number] | readonly ["flip" | "refuse"])[] = [];

  async open(file: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
    return (await this.openAt(file, 0, null, signal)).stream;
  }

  async openAt(file: string, offset: number, etag: string | null, signal: AbortSignal): Promise<Part> {
    this.requests.push([offset, etag]);
    const start = this.ranges ? offset : 0;
    const fault = this.faults.shift();
    if (fault?.[0] === "refuse") throw new BundleError("shard: refused", { status: 410 });
    const bytes = this.bytes.slice(start, fault?.[0] === "end" ? start + fault[1] : undefined);
    if (fault?.[0] === "flip") bytes[3] = (bytes[3] ?? 0) ^ 1;
    const stream = await memorySource({ [file]: bytes }).open(file, signal);
    let left = fault?.[0] === "cut" ? fault[1] : Infinity;
    const cut = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        if (left <= 0) controller.error(new TypeError("connection reset"));
        else controller.enqueue(chunk.slice(0, left));
        left -= chunk.length;
      },
    });
    return { stream: stream.pipeThrough(cut), start, etag: this.etag };
  }
}

let disk: MemoryDisk;
let store: BundleStore;
let server: Server;

beforeEach(async () => {
  disk = memoryDisk();
  store = await BundleStore.at(disk.root, memoryLocks());
  server = new Server();
});

/** Read the file as a load does. Returns the bytes or the error, and the number of bytes from each origin. */
async function read(
  source: Source = server,
  expected = EXPECTED,
): Promise<{ result: unknown; network: number; store: number }> {
  const counts = { network: 0, store: 0 };
  const stored = await storedSource(source, store, SIGNAL);
  const reading = stored?.read(expected, SIGNAL, (count, origin) => {
    counts[origin] += count;
    expect(counts[origin]).toBeGreaterThanOrEqual(0);
  });
  const result = await reading?.catch((error: unknown) => error);
  await stored?.close();
  return { result, ...counts };
}

test("a file comes from the network once, then from the store", async () => {
  expect(await read()).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
  expect(await read()).toEqual({ result: BYTES, network: 0, store: BYTES.length });
  expect(server.requests).toEqual([[0, null]]);
});

test("the bytes of a failed load are stored and counted, and only the rest of that version is requested", async () => {
  server.faults = [["cut", 230], ["refuse"]];
  expect((await read()).result).toMatchObject({ code: "bundle_error", details: { status: 410 } });
  expect(await read()).toEqual({ result: BYTES, network: BYTES.length - 230, store: 230 });
  expect(server.requests).toEqual([
    [0, null],
    [230, '"v1"'],
    [230, '"v1"'],
  ]);
});

test("a connection that breaks, or ends early, is resumed in the same load", async () => {
  server.faults = [
    ["cut", 130],
    ["end", 100],
  ];
  expect(await read()).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
  expect(server.requests).toEqual([
    [0, null],
    [130, '"v1"'],
    [230, '"v1"'],
  ]);
  expect((await store.file(EXPECTED.sha256 ?? "").part()).complete).toBe(true);
});

test("completely stored files are not checked on the server, others are", async () => {
  const looked: string[] = [];
  const source = Object.assign(server, { check: ({ file }: Expected) => Promise.resolve(void looked.push(file)) });
  for (let load = 0; load < 2; load++) {
    const stored = await storedSource(source, store, SIGNAL);
    await stored?.check(EXPECTED, SIGNAL);
    await stored?.read(EXPECTED, SIGNAL, () => undefined);
    await stored?.close();
  }
  expect(looked).toEqual(["shard"]);
});

test("an abort ends a read from a source that hangs and ignores the signal", async () => {
  const controller = new AbortController();
  const hanging: Source = { location: server.location, open: () => new Promise(() => undefined) };
  const stored = await storedSource(hanging, store, controller.signal);
  const reading = stored?.read(EXPECTED, controller.signal, () => undefined);
  setTimeout(() => {
    controller.abort();
  }, 5);
  await expect(reading).rejects.toHaveProperty("name", "AbortError");
  await stored?.close();
});

test("an abort retains the received bytes", async () => {
  const controller = new AbortController();
  const stored = await storedSource(server, store, controller.signal);
  const reading = stored?.read(EXPECTED, controller.signal, () => {
    controller.abort();
  });
  await expect(reading).rejects.toHaveProperty("name", "AbortError");
  await stored?.close();
  expect(await read()).toMatchObject({ result: BYTES, store: 100 });
});

test("a load closes when the received bytes are written, and only then may the bundle be deleted", async () => {
  const controller = new AbortController();
  const stored = await storedSource(server, store, controller.signal);
  await stored?.begin({
    ...lettersBundle().manifest,
    shards: [{ file: "shard", size: BYTES.length, sha256: EXPECTED.sha256 ?? "" }],
  });
  const reading = stored?.read(EXPECTED, controller.signal, () => {
    controller.abort();
  });
  const closed = stored?.close();
  await expect(store.delete(server.location)).rejects.toHaveProperty("code", "storage_error");
  await closed;
  await expect(reading).rejects.toHaveProperty("name", "AbortError");
  expect(await store.delete(server.location)).toBe(true);
  expect(disk.files.size).toBe(0);
});

test("a server without ranges, and a source without offsets, start again", async () => {
  server.faults = [["cut", 230], ["refuse"]];
  server.ranges = false;
  await read();
  expect(await read()).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
  await store.file(EXPECTED.sha256 ?? "").restart(null);
  await store.file(EXPECTED.sha256 ?? "").append(0, BYTES.slice(0, 50));
  expect(await read(memorySource({ shard: BYTES }))).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
});

test("a file that arrives damaged is fetched once more from its start", async () => {
  server.faults = [["flip"]];
  expect(await read()).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
  expect(server.requests).toEqual([
    [0, null],
    [0, null],
  ]);
});

test("a file that is always damaged is the error of its second response, and nothing of it is stored", async () => {
  server.faults = [["flip"], ["flip"]];
  const { result, network } = await read();
  expect(result).toMatchObject({ code: "bundle_error", details: { file: "shard", expected: EXPECTED.sha256 } });
  expect(network).toBe(0);
  expect((await store.file(EXPECTED.sha256 ?? "").part()).bytes.size).toBe(0);
});

test("a file that is too long is fetched once more, and is then an error", async () => {
  server.bytes = bytesOf("x".repeat(BYTES.length + 1));
  expect((await read()).result).toMatchObject({ details: { file: "shard", expected: BYTES.length } });
  expect(server.requests.length).toBe(2);
});

test("a damaged stored part is detected at the end, and the file is fetched again", async () => {
  const file = store.file(EXPECTED.sha256 ?? "");
  await file.append(0, bytesOf("not a shard"));
  expect(await read()).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
  expect(server.requests.map(([offset]) => offset)).toEqual([11, 0]);
});

test("a file with all bytes stored but not checked needs no network", async () => {
  await store.file(EXPECTED.sha256 ?? "").append(0, BYTES);
  expect(await read()).toEqual({ result: BYTES, network: 0, store: BYTES.length });
  expect(server.requests).toEqual([]);
});

test("a stored file that the disk flipped or cut is fetched again", async () => {
  await read();
  for (const damage of [
    (bytes: Uint8Array<ArrayBuffer>) => bytes.map((byte, index) => (index === 9 ? byte ^ 1 : byte)),
    () => BYTES.slice(0, 9),
  ]) {
    const path = `nearfar/files/${EXPECTED.sha256 ?? ""}/0`;
    disk.files.set(path, damage(disk.files.get(path) ?? BYTES));
    expect(await read()).toEqual({ result: BYTES, network: BYTES.length, store: 0 });
  }
});

test("two loads at once fetch a file once", async () => {
  const [one, other] = await Promise.all([read(), read()]);
  expect([one.result, other.result]).toEqual([BYTES, BYTES]);
  expect(one.network + other.network).toBe(BYTES.length);
  expect(server.requests.length).toBe(1);
});

test("a kernel, whose size is not in the manifest, is stored too", async () => {
  const { sha256 } = EXPECTED;
  const kernel = { file: "kernel", ...(sha256 === undefined ? {} : { sha256 }) };
  server.faults = [["flip"]];
  expect(await read(server, kernel)).toMatchObject({ result: BYTES });
  expect(await read(server, kernel)).toMatchObject({ result: BYTES, network: 0 });
  expect(server.requests.length).toBe(2);
});

test("a server's answer about the manifest is final, but without an answer the stored one is used", async () => {
  const manifest = { file: "manifest.json" };
  const refuses = (status?: number): Source => ({
    location: server.location,
    open: () => Promise.reject(new BundleError("refused", status === undefined ? {} : { status })),
  });
  const source = memorySource({ "manifest.json": bytesOf("{}") });
  await store.begin(server.location, { model: "m", shards: [], files: [], kernels: {} } as never, bytesOf("{}"));
  await store.finish(server.location, bytesOf("{}"));
  expect((await read(refuses(), manifest)).result).toEqual(bytesOf("{}"));
  expect((await read(refuses(404), manifest)).result).toMatchObject({ details: { status: 404 } });
  expect((await read({ ...source, location: server.location }, manifest)).result).toEqual(bytesOf("{}"));
  expect((await read({ ...refuses(), location: "https://host/never/" }, manifest)).result).toBeInstanceOf(BundleError);
});

test("loading an old version without a network retains the stored part of the new one", async () => {
  const old = lettersBundle().manifest;
  const manifest = { ...old, shards: [{ file: "shard", size: BYTES.length, sha256: EXPECTED.sha256 ?? "" }] };
  const load = async (source: Source, manifest: Manifest, ends: boolean): Promise<void> => {
    const stored = await storedSource(source, store, SIGNAL);
    await stored?.read({ file: "manifest.json" }, SIGNAL, () => undefined);
    await stored?.begin(manifest);
    if (ends) await stored?.finish();
    else await stored?.read(EXPECTED, SIGNAL, () => undefined).catch(() => undefined);
    await stored?.close();
  };
  const serving = (manifest: Manifest): Source => ({
    ...memorySource({ "manifest.json": bytesOf(JSON.stringify(manifest)) }),
    location: server.location,
  });
  await load(serving(old), old, true);
  server.faults = [["cut", 230], ["refuse"]];
  const next = serving(manifest);
  await load({ ...next, openAt: (...args) => server.openAt(...args) }, manifest, false);
  const offline: Source = { location: server.location, open: () => Promise.reject(new BundleError("no network")) };
  await load(offline, old, true);
  expect((await store.file(EXPECTED.sha256 ?? "").part()).bytes.size).toBe(230);
});

test("a stored bundle in an older format is refused without a network, and the error states what to do", async () => {
  const { manifest } = lettersBundle();
  const older = { ...manifest, format_version: 1 };
  await store.begin(server.location, older, bytesOf(JSON.stringify(older)));
  await store.finish(server.location, bytesOf(JSON.stringify(older)));
  const offline: Source = { location: server.location, open: () => Promise.reject(new BundleError("no network")) };
  const stored = await storedSource(offline, store, SIGNAL);
  if (stored === null) throw new Error("the store is not there");
  const loading = loadManifest(
    {
      location: server.location,
      open: async (file, signal) =>
        new Response(await stored.read({ file }, signal, () => undefined)).body ?? new ReadableStream(),
    },
    SIGNAL,
  );
  await expect(loading).rejects.toThrow(/has format version 1, this @nearfar\/web reads \d+; compile the bundle again/);
  await stored.close();
});
