import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Engine } from "../../src/index.js";
import { sha256 } from "../../src/runtime/read_file.js";
import type { Bytes, Source } from "../../src/runtime/source.js";
import type { CrossOriginStorage } from "../../src/store/cross_origin.js";
import { crossOriginSource } from "../../src/store/cross_origin.js";
import { bytesOf, memorySource } from "../letters_bundle.js";
import { lettersOnnx, stubRuntime } from "../onnx/letters_onnx.js";
import { waitFor } from "../wait_for.js";

const BYTES = bytesOf("a shard of weights");
const EXPECTED = { file: "shard", size: BYTES.length, sha256: await sha256(BYTES) };
const SIGNAL = new AbortController().signal;

/**
 * navigator.crossOriginStorage according to its explainer, for one origin: https://github.com/WICG/cross-origin-storage
 */
class FakeStorage {
  readonly entries = new Map<string, Bytes>();
  readonly requests: (readonly [string, object | undefined])[] = [];
  /** The error of every request, as on a page whose policy does not allow the storage. */
  failure: DOMException | null = null;

  async requestFileHandle(
    { algorithm, value }: { algorithm: string; value: string },
    options?: { create?: boolean; origins?: unknown },
  ): Promise<object> {
    this.requests.push([value, options]);
    if (algorithm !== "SHA-256" || !/^[0-9a-f]{64}$/.test(value)) throw new TypeError("not a hash");
    if (this.failure !== null) throw this.failure;
    const entry = this.entries.get(value);
    if (options?.create !== true) {
      if (entry === undefined) throw new DOMException("The file was not found", "NotFoundError");
      return { getFile: () => Promise.resolve(new File([entry], value)) };
    }
    let written = bytesOf("");
    const close = async (): Promise<void> => {
      if ((await sha256(written)) !== value) throw new DOMException("The hash differs", "DataError");
      this.entries.set(value, written);
    };
    return Promise.resolve({
      createWritable: () =>
        Promise.resolve({
          write: (bytes: Bytes) => {
            written = new Uint8Array([...written, ...bytes]);
            return Promise.resolve();
          },
          close,
        }),
    });
  }
}

let storage: FakeStorage;
let opened: string[];

beforeEach(() => {
  storage = new FakeStorage();
  opened = [];
  vi.stubGlobal("navigator", { crossOriginStorage: storage });
});

afterEach(() => {
  vi.unstubAllGlobals();
});

function counting(source: Source): Source {
  return { location: source.location, open: (file, signal) => (opened.push(file), source.open(file, signal)) };
}

async function read(
  sharing: CrossOriginStorage,
  expected: object = EXPECTED,
  files: Record<string, Bytes> = { shard: BYTES },
) {
  const counts = { network: 0, store: 0 };
  const source = crossOriginSource(counting(memorySource(files)), sharing);
  const onBytes = (count: number, origin: "network" | "store"): void => {
    counts[origin] += count;
  };
  const bytes = source.read === undefined ? null : await source.read({ file: "shard", ...expected }, SIGNAL, onBytes);
  return { bytes, ...counts };
}

test("a file is stored after its download, and read from there the next time", async () => {
  expect(await read(true)).toEqual({ bytes: BYTES, network: BYTES.length, store: 0 });
  await waitFor(() => {
    expect(storage.entries.get(EXPECTED.sha256)).toEqual(BYTES);
  });
  expect(await read(true)).toEqual({ bytes: BYTES, network: 0, store: BYTES.length });
  expect(opened).toEqual(["shard"]);
});

test.each([
  [true, { create: true }],
  ["*", { create: true, origins: "*" }],
  [["https://b.example"], { create: true, origins: ["https://b.example"] }],
] as const)("shared with %j, a file is stored with %j", async (sharing, options) => {
  await read(sharing);
  expect(storage.requests).toEqual([
    [EXPECTED.sha256, undefined],
    [EXPECTED.sha256, options],
  ]);
});

test("bytes with another hash are not used, whatever the storage returns", async () => {
  storage.entries.set(EXPECTED.sha256, bytesOf("b shard of weights"));
  expect(await read(true)).toEqual({ bytes: BYTES, network: BYTES.length, store: 0 });
});

test.each(["NotAllowedError", "QuotaExceededError"])(
  "a load does not fail if the storage fails with %s",
  async (name) => {
    storage.failure = new DOMException("no", name);
    expect(await read(true)).toMatchObject({ bytes: BYTES, network: BYTES.length });
  },
);

test("a damaged download is an error and is not stored; a kernel is not looked up", async () => {
  await expect(read(true, EXPECTED, { shard: bytesOf("b shard of weights") })).rejects.toHaveProperty(
    "code",
    "bundle_error",
  );
  expect(storage.requests.filter(([, options]) => options !== undefined)).toEqual([]);
  storage.requests.length = 0;
  await read(true, { sha256: EXPECTED.sha256 });
  expect(storage.requests).toEqual([]);
});

test("an aborted read downloads nothing", async () => {
  const source = crossOriginSource(memorySource({ shard: BYTES }), true);
  await expect(source.read?.(EXPECTED, AbortSignal.abort(), () => undefined)).rejects.toHaveProperty(
    "name",
    "AbortError",
  );
});

test("if it is turned off, or if the browser does not have it, the source is not changed", () => {
  const source = memorySource({ shard: BYTES });
  expect(crossOriginSource(source, false)).toBe(source);
  for (const navigator of [undefined, {}]) {
    vi.stubGlobal("navigator", navigator);
    expect(crossOriginSource(source, "*")).toBe(source);
  }
});

test("an engine reads weights and tokenizer from it; for a custom source it must be switched on", async () => {
  const { files } = lettersOnnx();
  const load = async (options: object): Promise<void> => {
    opened = [];
    const onnx = { runtime: () => Promise.resolve({ default: stubRuntime().ort }) };
    (await Engine.load(counting(memorySource(files)), { onnx, ...options })).destroy();
  };
  await load({});
  expect([opened.length > 1, storage.requests.length]).toEqual([true, 0]);
  await load({ crossOriginStorage: true });
  await waitFor(() => {
    expect(storage.entries.size).toBe(opened.length - 1);
  });
  await load({ crossOriginStorage: true });
  expect(opened).toEqual(["manifest.json"]);
});

test("a file that only the shared storage has can be read again in parts", async () => {
  vi.stubGlobal("navigator", { crossOriginStorage: storage });
  const source = crossOriginSource(memorySource({ shard: BYTES }), true);
  expect(await source.stored?.(EXPECTED)).toBeNull();
  storage.entries.set(EXPECTED.sha256, BYTES);
  expect(await (await source.stored?.(EXPECTED))?.slice(2, 7).text()).toBe("shard");
});
