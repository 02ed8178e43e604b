import { createHash } from "node:crypto";

import { afterEach, expect, test } from "vitest";

import { lettersBundle } from "../../../web/test/letters_bundle.js";
import { lettersOnnx } from "../../../web/test/onnx/letters_onnx.js";
import type { LoadProgress } from "../../../web/src/load_options.js";
import { LOAD_START } from "../../../web/src/load_options.js";
import { BundleLoader } from "../src/index.js";
import { FakePhone, usePhone } from "./fake_capacitor.js";

type Bytes = Uint8Array<ArrayBuffer>;

const ADDRESS = "https://example.org/bundle/?key=1";
const SHARD = "weights/00000.bin";

afterEach(() => {
  usePhone(null);
});

function hashOf(bytes: Bytes): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** A server with a bundle, and the app's page on a phone. */
function start(changes: Parameters<typeof lettersBundle>[0] = {}) {
  const served = new Map<string, Bytes>();
  const publish = (others: typeof changes): string => {
    const { manifest, files } = lettersBundle(others);
    const text = JSON.stringify(manifest);
    served.clear();
    for (const [file, bytes] of Object.entries({ ...files, "manifest.json": new TextEncoder().encode(text) }))
      served.set(`https://example.org/bundle/${file}?key=1`, bytes);
    return createHash("sha256").update(text).digest("hex");
  };
  const id = publish(changes);
  const phone = new FakePhone(served);
  usePhone(phone);
  const network = { up: true };
  const get = ((url: string) => {
    if (!network.up) return Promise.reject(new TypeError("Network request failed"));
    const bytes = served.get(url);
    return Promise.resolve(bytes === undefined ? new Response(null, { status: 404 }) : new Response(bytes));
  }) as typeof fetch;
  const reports: LoadProgress[] = [];
  const onProgress = (progress: LoadProgress): void => {
    reports.push(progress);
  };
  return { phone, id, publish, served, network, reports, options: { fetch: get, onProgress } };
}

/** A host that reports as an engine does that reads its files from the app's server. */
function fakeHost() {
  const loads: { readonly bundle: string; readonly options: Readonly<Record<string, unknown>> }[] = [];
  return {
    loads,
    load(
      bundle: string,
      options: {
        readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
        readonly signal?: AbortSignal;
      } = {},
    ) {
      loads.push({ bundle, options: { ...options } });
      options.onProgress?.(LOAD_START);
      options.onProgress?.({ ...LOAD_START, phase: "download", loadedBytes: 5, totalBytes: 500, totalKernels: 7 });
      options.onProgress?.({ ...LOAD_START, phase: "ready", loadedBytes: 500, totalBytes: 500, totalKernels: 7 });
      return Promise.resolve({ model: "letters" });
    },
  };
}

test("the phone downloads all files, with their hashes, and the host loads them from its storage", async () => {
  const { phone, id, served, reports, options } = start();
  const host = fakeHost();
  expect(await new BundleLoader().load(host, ADDRESS, { ...options, wifiOnly: true })).toEqual({ model: "letters" });
  expect(phone.calls).toEqual(["start on Wi-Fi"]);
  expect(host.loads).toMatchObject([
    { bundle: `capacitor://localhost/_capacitor_file_/documents/nearfar/${id}/`, options: { store: false } },
  ]);
  expect(Object.keys(host.loads[0]?.options ?? {}).sort()).toEqual(["onProgress", "store"]);
  for (const [url, bytes] of served) {
    const stored = phone.files.get(`${id}/${url.slice("https://example.org/bundle/".length, -"?key=1".length)}`);
    expect(hashOf(Buffer.from(stored ?? "") as unknown as Bytes)).toBe(hashOf(bytes));
  }
  const [first] = reports;
  expect(first).toEqual(LOAD_START);
  const phases = reports.map(({ phase }) => phase).filter((phase, index, all) => phase !== all[index - 1]);
  expect(phases).toEqual(["manifest", "download", "upload", "ready"]);
  const loaded = reports.map(({ loadedBytes }) => loadedBytes);
  expect(loaded).toEqual([...loaded].sort((one, other) => one - other));
  const last = reports.at(-1);
  expect(last).toMatchObject({ loadedBytes: last?.totalBytes, storedBytes: 0, totalKernels: 7 });
  expect(phone.listeners).toBe(0);
});

test("a download goes on without the app, and the next start of the app joins it", async () => {
  const { phone, reports, options } = start();
  phone.waits = true;
  const lost = new BundleLoader().load(fakeHost(), ADDRESS, options);
  lost.catch(() => undefined);
  await expect.poll(() => phone.jobs.size).toBe(1);
  phone.restart();
  phone.proceed(1);
  reports.length = 0;
  const host = fakeHost();
  const joined = new BundleLoader().load(host, ADDRESS, options);
  await expect.poll(() => phone.calls.length).toBe(2);
  phone.proceed();
  await joined;
  expect(host.loads).toHaveLength(1);
  expect(reports.at(-1)?.phase).toBe("ready");
});

test("without a network, stored bundles load, and others are a BundleError", async () => {
  const { phone, id, network, reports, options } = start();
  const loader = new BundleLoader();
  await loader.load(fakeHost(), ADDRESS, options);
  network.up = false;
  reports.length = 0;
  await loader.load(fakeHost(), ADDRESS, options);
  const last = reports.at(-1);
  expect(last).toMatchObject({ phase: "ready", storedBytes: last?.totalBytes });
  expect(reports.map(({ phase }) => phase)).not.toContain("download");
  expect(phone.files.has(`${id}/${SHARD}`)).toBe(true);
  await loader.remove(ADDRESS, options.fetch);
  expect([...phone.files.keys()]).toEqual([]);
  await expect(loader.load(fakeHost(), ADDRESS, options)).rejects.toMatchObject({ code: "bundle_error" });
});

test("a newer version replaces the older one when it is complete", async () => {
  const { phone, id, publish, options } = start();
  const loader = new BundleLoader();
  await loader.load(fakeHost(), ADDRESS, options);
  const newer = publish({ generator: "newer" });
  phone.waits = true;
  const loading = loader.load(fakeHost(), ADDRESS, options);
  await expect.poll(() => phone.jobs.size).toBe(1);
  expect(phone.files.has(`${id}/${SHARD}`)).toBe(true);
  phone.proceed();
  await loading;
  expect(new Set([...phone.files.keys()].map((file) => file.slice(0, 64)))).toEqual(
    new Set([newer, createHash("sha256").update(ADDRESS).digest("hex")]),
  );
});

test("the native side's errors keep their class, and the host is not asked", async () => {
  const { phone, served, options } = start();
  served.set(`https://example.org/bundle/${SHARD}?key=1`, Uint8Array.of(1));
  const host = fakeHost();
  await expect(new BundleLoader().load(host, ADDRESS, options)).rejects.toMatchObject({
    code: "bundle_error",
    details: { file: SHARD },
  });
  expect(host.loads).toEqual([]);
  expect(phone.listeners).toBe(0);
});

test("an abort stops a download unless another load waits for it", async () => {
  const { phone, options } = start();
  phone.waits = true;
  const loader = new BundleLoader();
  const [one, other] = [new AbortController(), new AbortController()];
  const first = loader.load(fakeHost(), ADDRESS, { ...options, signal: one.signal });
  const second = loader.load(fakeHost(), ADDRESS, { ...options, signal: other.signal });
  await expect.poll(() => phone.calls.length).toBe(2);
  one.abort(new Error("enough"));
  await expect(first).rejects.toThrow("enough");
  expect(phone.calls).not.toContain("stop");
  other.abort(new Error("enough, too"));
  await expect(second).rejects.toThrow("enough, too");
  expect(phone.calls.at(-1)).toBe("stop");
  expect(phone.listeners).toBe(0);
});

test("who waits for a bundle that is removed gets a WorkerError", async () => {
  const { phone, options } = start();
  phone.waits = true;
  const loader = new BundleLoader();
  const loading = loader.load(fakeHost(), ADDRESS, options);
  const failed = expect(loading).rejects.toMatchObject({ code: "worker_error" });
  await expect.poll(() => phone.jobs.size).toBe(1);
  await loader.remove(ADDRESS, options.fetch);
  await failed;
  expect(phone.jobs.size).toBe(0);
});

test("an ONNX bundle is refused, and in a browser the engine itself downloads and stores", async () => {
  const { served, options } = start();
  const text = new TextEncoder().encode(JSON.stringify(lettersOnnx().manifest));
  served.set("https://example.org/bundle/manifest.json?key=1", text);
  await expect(new BundleLoader().load(fakeHost(), ADDRESS, options)).rejects.toThrow("need --target webgpu");
  usePhone(null);
  const host = fakeHost();
  await new BundleLoader().load(host, ADDRESS, options);
  expect(host.loads[0]?.bundle).toBe(ADDRESS);
  expect(host.loads[0]?.options).not.toHaveProperty("store");
});
