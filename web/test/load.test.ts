// Loading from servers that hang, cut connections, omit files or answer HEAD in their own way, on Dawn in Node.

import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

import { afterEach, expect, test, vi } from "vitest";

import { DeviceError, NearfarError } from "../src/errors.js";
import type { LoadOptions, LoadProgress } from "../src/index.js";
import { Engine } from "../src/index.js";
import { Hybrid } from "../src/router/hybrid.js";
import type { Source } from "../src/runtime/source.js";
import { CreateMLCEngine } from "../src/webllm/index.js";
import { dawn } from "../tools/dawn.js";
import { oneOf } from "./exhaustive.js";
import { bytesOf, lettersBundle, memorySource } from "./letters_bundle.js";
import { waitFor } from "./wait_for.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const { files } = lettersBundle();
const SHARD = "weights/00000.bin";

type Answer = (request: IncomingMessage, response: ServerResponse, bytes: Uint8Array) => void;

interface Host {
  readonly url: string;
  /** Method, path and range of each request, in order. */
  readonly requests: string[];
}

const closing: (() => void)[] = [];

afterEach(() => {
  vi.unstubAllGlobals();
  for (const close of closing.splice(0)) close();
});

/** A server with the bundle; ``answers`` replaces its responses by path. */
async function host(answers: Readonly<Record<string, Answer>> = {}): Promise<Host> {
  const requests: string[] = [];
  const server = createServer((request, response) => {
    const path = (request.url ?? "").slice(1);
    requests.push(
      [request.method, path, ...(request.headers.range === undefined ? [] : [request.headers.range])].join(" "),
    );
    const bytes = files[path];
    if (bytes === undefined) response.writeHead(404).end();
    else (answers[path] ?? whole)(request, response, bytes);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, requests };
}

const whole: Answer = ({ method, headers }, response, bytes) => {
  const from = Number(/^bytes=(\d+)-$/.exec(headers.range ?? "")?.[1] ?? 0);
  if (from > 0)
    response.writeHead(206, {
      "Content-Range": `bytes ${from}-${bytes.length - 1}/${bytes.length}`,
      "Content-Length": bytes.length - from,
    });
  else response.writeHead(200, { "Content-Length": bytes.length });
  response.end(method === "HEAD" ? undefined : bytes.subarray(from));
};

const omit: Answer = (_, response) => {
  response.writeHead(404).end();
};

/** Closes the first connection after 100 bytes. */
function cutOnce(then: Answer, chunked = false): Answer {
  let isCut = false;
  return (request, response, bytes) => {
    if (isCut || request.method === "HEAD") {
      then(request, response, bytes);
      return;
    }
    isCut = true;
    if (!chunked) response.writeHead(200, { "Content-Length": bytes.length });
    response.write(bytes.subarray(0, 100), () => response.socket?.destroy());
  };
}

/** Aborts a load when ``reached`` resolves. Without the abort, the loads of these tests never end. */
async function abortWhen(reached: Promise<void>, bundle: string | Source, options: LoadOptions = {}): Promise<unknown> {
  const controller = new AbortController();
  void reached.then(() => {
    controller.abort();
  });
  return Engine.load(bundle, { gpu, ...options, signal: controller.signal }).catch((error: unknown) => error);
}

/** A promise that resolves when its function is called. */
function event(): { readonly happened: Promise<void>; readonly happens: () => void } {
  let happens = (): void => undefined;
  const happened = new Promise<void>((resolve) => (happens = resolve));
  return { happened, happens };
}

const ABORTED = { name: "AbortError" };

test.runIf(hasAdapter).each(["manifest.json", "tokenizer.json", SHARD, "kernels/sample.wgsl"])(
  "an abort ends a load whose %s hangs",
  async (path) => {
    const { happened, happens } = event();
    const { url } = await host({ [path]: happens });
    expect(await abortWhen(happened, url)).toMatchObject(ABORTED);
  },
);

test.runIf(hasAdapter)(
  "an abort ends a load that waits for an adapter, for notes, or for a source that ignores the signal",
  async () => {
    const [adapter, notes, source] = [event(), event(), event()];
    const never = ({ happens }: typeof adapter) => {
      return (): Promise<never> => {
        happens();
        return new Promise(() => undefined);
      };
    };
    const noAdapter = { requestAdapter: never(adapter) } as unknown as GPU;
    const loads = [
      abortWhen(adapter.happened, memorySource(files), { gpu: noAdapter }),
      abortWhen(notes.happened, memorySource(files), { notes: { read: never(notes), write: never(notes) } }),
      abortWhen(source.happened, { location: "hangs", open: never(source) }),
    ];
    for (const error of await Promise.all(loads)) expect(error).toMatchObject(ABORTED);
  },
);

/** A GPU with devices whose method ``name`` never resolves, and the number of its destroyed devices. */
function stuck(
  name: "createComputePipelineAsync",
  onWait: () => void,
): { readonly gpu: GPU; destroyed: number; waiting: number } {
  const made = {
    destroyed: 0,
    waiting: 0,
    gpu: {
      wgslLanguageFeatures: gpu.wgslLanguageFeatures,
      async requestAdapter() {
        const adapter = await gpu.requestAdapter();
        const request = adapter?.requestDevice.bind(adapter);
        return Object.assign(adapter ?? {}, {
          async requestDevice(descriptor: GPUDeviceDescriptor) {
            const device = await request?.(descriptor);
            const destroy = device?.destroy.bind(device);
            return Object.assign(device ?? {}, {
              [name]: () => {
                made.waiting++;
                onWait();
                return new Promise(() => undefined);
              },
              destroy: () => {
                made.destroyed++;
                destroy?.();
              },
            });
          },
        });
      },
    } as unknown as GPU,
  };
  return made;
}

test.runIf(hasAdapter)("an abort while kernels compile frees the device at once", async () => {
  const { happened, happens } = event();
  const made = stuck("createComputePipelineAsync", happens);
  expect(await abortWhen(happened, memorySource(files), { gpu: made.gpu })).toMatchObject(ABORTED);
  expect(made.waiting).toBeGreaterThan(0);
  expect(made.destroyed).toBe(1);
});

test.runIf(hasAdapter)("an abort during the self-test frees the device at once", async () => {
  const controller = new AbortController();
  const destroyed = vi.fn();
  const adapter = await gpu.requestAdapter();
  const request = adapter?.requestDevice.bind(adapter);
  const watched = Object.assign(adapter ?? {}, {
    requestDevice: async (descriptor: GPUDeviceDescriptor) => {
      const device = await request?.(descriptor);
      void device?.lost.then(destroyed);
      return device;
    },
  }) as GPUAdapter;
  const onProgress = ({ phase }: LoadProgress): void => {
    if (phase === "self-test") controller.abort();
  };
  await expect(
    Engine.load(memorySource(files), { gpu, adapter: watched, signal: controller.signal, onProgress }),
  ).rejects.toMatchObject(ABORTED);
  await waitFor(() => {
    expect(destroyed).toHaveBeenCalledOnce();
  });
});

test.each<[string, Answer, object]>([
  ["is missing", omit, { file: SHARD, status: 404 }],
  [
    "has another size",
    (_, response) => void response.writeHead(200, { "Content-Length": 5 }).end("short"),
    { file: SHARD, found: 5, expected: 256 },
  ],
])("a shard that %s ends the load before anything else is fetched", async (_, answer, details) => {
  const { url, requests } = await host({ [SHARD]: answer });
  await expect(Engine.load(url, { gpu })).rejects.toMatchObject({ code: "bundle_error", details });
  expect(requests.filter((request) => request.startsWith("GET") && !request.includes(SHARD))).toEqual([
    "GET manifest.json",
  ]);
});

/** Answers HEAD with ``answer`` and all other requests correctly. */
const toHead =
  (answer: (response: ServerResponse) => void): Answer =>
  (request, response, bytes) => {
    if (request.method === "HEAD") answer(response);
    else whole(request, response, bytes);
  };

test.runIf(hasAdapter).each(
  oneOf<[string, Answer]>(3, [
    ["refuses HEAD", toHead((response) => response.writeHead(403).end())],
    ["returns 404 to HEAD", toHead((response) => response.writeHead(404).end())],
    ["returns length 0 to HEAD", toHead((response) => response.writeHead(200, { "Content-Length": 0 }).end())],
    ["closes the connection on HEAD", toHead((response) => response.destroy())],
  ]),
)("a bundle can be loaded from a host that %s", async (_, answer) => {
  const { url } = await host({ [SHARD]: answer });
  (await Engine.load(url, { gpu })).destroy();
});

const withoutRanges: Answer = (request, response, bytes) => {
  response.writeHead(200, { "Content-Length": bytes.length }).end(request.method === "HEAD" ? undefined : bytes);
};

test.runIf(hasAdapter).each(
  oneOf<[string, Answer]>(2, [
    ["the rest arrives as a range", cutOnce(whole)],
    ["the length is unknown", cutOnce(whole, true)],
    ["the server has no ranges", cutOnce(withoutRanges)],
  ]),
)(
  "a shard is resumed in the same load after a broken connection, and progress never decreases: %s",
  async (_, answer) => {
    const { url, requests } = await host({ [SHARD]: answer });
    const seen: number[] = [];
    const engine = await Engine.load(url, { gpu, onProgress: ({ loadedBytes }) => seen.push(loadedBytes) });
    engine.destroy();
    expect(requests.filter((request) => request.startsWith(`GET ${SHARD}`))).toEqual([
      `GET ${SHARD}`,
      `GET ${SHARD} bytes=100-`,
    ]);
    expect(seen).toEqual([...seen].sort((one, other) => one - other));
    expect(seen.at(-1)).toBe(engine.info.downloadBytes);
  },
);

test.runIf(hasAdapter)("the bytes after a broken connection are hashed with the bytes before it", async () => {
  const { url } = await host({
    [SHARD]: cutOnce((request, response, bytes) => {
      whole(
        request,
        response,
        bytes.map((byte, index) => (index === 200 ? byte ^ 1 : byte)),
      );
    }),
  });
  await expect(Engine.load(url, { gpu })).rejects.toMatchObject({
    code: "bundle_error",
    details: { file: SHARD, found: expect.any(String) as string },
  });
});

test("load and plan state the reason on a page that is not a secure context, before anything is fetched", async () => {
  vi.stubGlobal("isSecureContext", false);
  const { url, requests } = await host();
  const reason = "not loaded over https or from localhost";
  await expect(Engine.load(url)).rejects.toThrow(reason);
  expect(requests).toEqual([]);
  await expect(Engine.plan(url)).rejects.toThrow(reason);
});

test.each([
  ["no navigator.gpu", undefined, "This browser has no WebGPU; use"],
  ["navigator.gpu = null", null, "This browser has no WebGPU; use"],
  ["no adapter", { requestAdapter: () => Promise.resolve(null) }, "This browser has no WebGPU adapter"],
])("a browser with %s is a DeviceError that states this", async (_, webGpu, message) => {
  vi.stubGlobal("navigator", { userAgent: "test", gpu: webGpu });
  for (const start of [Engine.load.bind(Engine), Engine.plan.bind(Engine)]) {
    const error: unknown = await start(memorySource(files)).catch((error: unknown) => error);
    expect(error).toBeInstanceOf(DeviceError);
    expect((error as DeviceError).message).toContain(message);
  }
});

test("a bundle that a probe refuses is not downloaded, and the error is the probe's", async () => {
  const { url, requests } = await host();
  const refusal = {
    reason: "memory",
    message: "letters takes 3 GB, and 1 GB are free",
    found: 1e9,
    needed: 3e9,
  } as const;
  const seen: unknown[] = [];
  const probe = (address: unknown) => {
    seen.push(address);
    return Promise.resolve({ refusals: [refusal], fit: null });
  };
  const loading = Engine.load(url, { gpu, store: false, probe });
  await expect(loading).rejects.toMatchObject({
    code: "device_error",
    message: refusal.message,
    details: { step: "probe", reason: "memory", needed: 3e9 },
  });
  expect(seen).toEqual([url]);
  expect(requests).toEqual(["GET manifest.json"]);
});

test.runIf(hasAdapter)("a bundle that fits with less memory gets the probe's budget", async () => {
  const { url } = await host();
  const whole = await Engine.plan(url, { gpu });
  const budget = whole.totalBytes - 2 * whole.pageBytes;
  const fit = { activation: "float32", context: 16, prefill_chunk: 64, memory_budget: budget } as const;
  const probe = () => Promise.resolve({ refusals: [], fit });
  const engine = await Engine.load(url, { gpu, store: false, tuning: false, probe });
  expect(engine.info.context).toBe(whole.context - 16);
  engine.destroy();
});

test("WebLLM's entry point and a router with only a near side throw the same reason", async () => {
  vi.stubGlobal("isSecureContext", false);
  const reason = "not loaded over https or from localhost";
  await expect(
    CreateMLCEngine("demo", { appConfig: { model_list: [{ model_id: "demo", model: "https://host/bundle/" }] } }),
  ).rejects.toThrow(reason);
  await expect(
    Hybrid.create({ near: "https://host/bundle/", far: null, policy: { version: 1, mode: "near-only" } }),
  ).rejects.toThrow(reason);
});

type Path = readonly (string | number)[];

/** The paths of all numbers in a value, each list's first and last items only. */
function* numbers(value: unknown, path: Path = []): Generator<Path> {
  if (typeof value === "number") yield path;
  if (typeof value !== "object" || value === null) return;
  const entries = Object.entries(value);
  const some = Array.isArray(value) && entries.length > 2 ? [...entries.slice(0, 1), ...entries.slice(-1)] : entries;
  for (const [key, item] of some) yield* numbers(item, [...path, key]);
}

test.each(oneOf(3, [2 ** 31 - 1, 2 ** 40, Number.MAX_SAFE_INTEGER]))(
  "a manifest with %i as any of its numbers loads, or is a typed error before anything of that size is allocated",
  async (value) => {
    // Nothing is computed, and a buffer beyond the limits is refused as on any device.
    const noDevice = dawn("backend=null");
    const { manifest } = lettersBundle();
    const refused = new Set<string>();
    for (const path of numbers(manifest)) {
      const changed = structuredClone(manifest) as unknown as Record<string, unknown>;
      const last = path.at(-1) ?? "";
      const holder = path
        .slice(0, -1)
        .reduce<Record<string | number, unknown>>((inner, key) => inner[key] as Record<string, unknown>, changed);
      holder[last] = value;
      const source = memorySource({ ...files, "manifest.json": bytesOf(JSON.stringify(changed)) });
      try {
        (await Engine.load(source, { gpu: noDevice, selfTest: "never", tuning: false })).destroy();
      } catch (error) {
        expect(error, path.join(".")).toBeInstanceOf(NearfarError);
        refused.add(path.join("."));
      }
    }
    for (const path of ["context", "shards.0.size", "files.0.size", "plans.generate.inputs.sample_slots.shape.1"])
      expect(refused).toContain(path);
  },
);
