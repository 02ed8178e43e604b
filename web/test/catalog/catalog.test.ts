// Catalogs: which bundle is chosen for which device, what is refused, and a load by name on Dawn in Node.

import { createHash } from "node:crypto";

import { afterEach, expect, test, vi } from "vitest";

import type { CatalogBundle, CatalogModel, DeviceFacts } from "../../src/catalog/index.js";
import { Catalog, deviceFacts, misfit } from "../../src/catalog/index.js";
import { CATALOG_VERSION } from "../../src/catalog/catalog.js";
import { BundleError, DeviceError, RequestError } from "../../src/errors.js";
import { Engine } from "../../src/index.js";
import { dawn } from "../../tools/dawn.js";
import { lettersBundle } from "../letters_bundle.js";

const GIB = 2 ** 30;
const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;

const bundle = (folder: string, gibibytes: number, changes: Partial<CatalogBundle> = {}): CatalogBundle => ({
  folder,
  manifest_sha256: "0".repeat(64),
  manifest_bytes: 1,
  target: "webgpu",
  arch: null,
  quantization: "q4f16",
  context: 256,
  activations: [
    { dtype: "float16", needs: ["shader-f16"] },
    { dtype: "float32", needs: [] },
  ],
  download_bytes: gibibytes * GIB,
  memory_bytes: gibibytes * GIB,
  largest_buffer_bytes: 2 ** 20,
  kl_mean: null,
  signed_by: null,
  ...changes,
});

const model = (bundles: readonly CatalogBundle[]): CatalogModel => ({
  model: "Letters",
  task: "generate",
  license: { id: "mit", title: "MIT License", link: null, display: [] },
  base_models: [],
  bundles,
});

const device = (changes: Partial<DeviceFacts> = {}): DeviceFacts => ({
  features: new Set(),
  maxBufferBytes: 2 ** 27,
  memoryBytes: null,
  ...changes,
});

afterEach(() => {
  vi.unstubAllGlobals();
});

/** A catalog at https://host/all/, whose server also has these files. */
function serve(data: unknown, files: Readonly<Record<string, Uint8Array<ArrayBuffer>>> = {}): string[] {
  const requests: string[] = [];
  vi.stubGlobal("fetch", async (address: string | URL, { method }: RequestInit = {}) => {
    const { href } = new URL(address);
    requests.push(href);
    const file = href.replace("https://host/all/", "");
    if (file === "catalog.json") return Promise.resolve(new Response(JSON.stringify(data)));
    const bytes = files[file];
    if (bytes === undefined) return Promise.resolve(new Response("", { status: 404 }));
    const headers = { "Content-Length": String(bytes.length) };
    return Promise.resolve(new Response(method === "HEAD" ? null : bytes, { headers }));
  });
  return requests;
}

async function catalogOf(bundles: readonly CatalogBundle[]): Promise<Catalog> {
  serve({ format_version: CATALOG_VERSION, generator: "test", models: { letters: model(bundles) } });
  return Catalog.fetch("https://host/all/");
}

const SIZES = [bundle("l/large", 4), bundle("l/middle", 2), bundle("l/small", 1)];

test.each([
  ["the most exact that fits into the memory", { memoryBytes: 2.5 * GIB }, ["l/middle", "l/small"]],
  ["the smallest if the memory is not known", {}, ["l/small", "l/middle", "l/large"]],
  ["the most exact if a probe measures the memory", { isProbed: true }, ["l/large", "l/middle", "l/small"]],
  ["all, the most exact first, if all fit", { memoryBytes: 8 * GIB }, ["l/large", "l/middle", "l/small"]],
])("a device gets %s", async (_, facts, expected) => {
  const catalog = await catalogOf(SIZES);
  const addresses = catalog.addresses("letters", device(facts));
  expect(addresses).toEqual(expected.map((folder) => `https://host/all/${folder}/`));
});

test("WebGPU comes before ONNX, and other targets do not run in a page", async () => {
  const catalog = await catalogOf([
    bundle("l/onnx", 1, { target: "onnx" }),
    bundle("l/cpu", 1, { target: "cpu" }),
    ...SIZES,
  ]);
  const folders = catalog
    .addresses("letters", device({ memoryBytes: GIB }))
    .map((address) => address.split("/").at(-2));
  expect(folders).toEqual(["small", "onnx"]);
  expect(catalog.addresses("letters", null)).toEqual(["https://host/all/l/onnx/"]);
});

test("what a device lacks is the reason", async () => {
  const needy = { activations: [{ dtype: "float16", needs: ["shader-f16"] } as const] };
  expect(misfit(bundle("a", 1, needy), device())).toBe("this device lacks shader-f16");
  expect(misfit(bundle("a", 1, needy), device({ features: new Set(["shader-f16"]) }))).toBeNull();
  expect(misfit(bundle("a", 1, { activations: [] }), device())).toBe("this device lacks its activations");
  expect(misfit(bundle("a", 1, { largest_buffer_bytes: 2 ** 28 }), device())).toContain("its largest buffer has");
  const catalog = await catalogOf(SIZES);
  const tooSmall = (): unknown => catalog.addresses("letters", device({ memoryBytes: GIB / 2 }));
  expect(tooSmall).toThrow(DeviceError);
  expect(tooSmall).toThrow(/No bundle of letters fits this device: l\/large: it needs .*; l\/small: it needs/);
});

test("the memory is the budget, else half of what the browser reports, else unknown", async () => {
  const limits = { maxBufferSize: 2 ** 30, maxStorageBufferBindingSize: 2 ** 27 };
  const adapter = { features: new Set(["shader-f16"]), limits } as unknown as GPUAdapter;
  vi.stubGlobal("navigator", {
    gpu: { wgslLanguageFeatures: new Set(["packed_4x8_integer_dot_product"]) },
    deviceMemory: 8,
  });
  expect(await deviceFacts({ adapter, memoryBudget: 5 })).toMatchObject({ memoryBytes: 5 });
  expect(await deviceFacts({ adapter })).toEqual({
    features: new Set(["shader-f16", "packed_4x8_integer_dot_product"]),
    maxBufferBytes: 2 ** 27,
    memoryBytes: 4 * GIB,
    isProbed: false,
  });
  // A probe measures it.
  expect(await deviceFacts({ adapter, probe: () => null })).toMatchObject({ memoryBytes: null, isProbed: true });
  vi.stubGlobal("navigator", {});
  expect(await deviceFacts({ adapter })).toMatchObject({ memoryBytes: null });
  expect(await deviceFacts()).toBeNull();
});

test("an option that is not known is refused by name", async () => {
  const catalog = await catalogOf(SIZES);
  expect(() => catalog.addresses("letters", { ...device(), memory: 5 } as never)).toThrow("'device.memory' is not");
  await expect(deviceFacts({ budget: 5 } as never)).rejects.toThrow("'budget' is not supported; supported: gpu");
  await expect(Catalog.fetch("https://host/all/", { signal: null } as never)).rejects.toThrow("must be an AbortSignal");
});

test("an unknown name lists the known ones", async () => {
  const catalog = await catalogOf(SIZES);
  expect(() => catalog.model("toString")).toThrow(RequestError);
  expect(() => catalog.model("lettres")).toThrow('The catalog has no model "lettres"; it has letters');
});

test.each([
  [{ format_version: 2 }, "has format version 2, this @nearfar/web reads 1"],
  [[], "has format version []"],
  [{ format_version: 1, generator: "g", models: {}, more: 1 }, "more is not known here"],
  [
    { format_version: 1, generator: "g", models: { m: model([bundle("../up", 1)]) } },
    'models.m.bundles[0].folder must be a text of the right form, not "../up"',
  ],
])("a catalog that is not understood is refused: %#", async (data, message) => {
  serve(data);
  const fetching = Catalog.fetch("https://host/all/catalog.json");
  await expect(fetching).rejects.toThrow(BundleError);
  await expect(fetching).rejects.toThrow(message);
});

test("the hub's address of a repository", async () => {
  const requests = serve({});
  await expect(Catalog.fetch("hf:owner/name")).rejects.toThrow("the server answers 404");
  expect(requests).toEqual(["https://huggingface.co/owner/name/resolve/main/catalog.json"]);
});

test.skipIf(!hasAdapter)("a name loads the bundle that runs here", async () => {
  const { files } = lettersBundle();
  const there = Object.fromEntries(Object.entries(files).map(([file, bytes]) => [`letters/webgpu/${file}`, bytes]));
  const manifest = files["manifest.json"] ?? new Uint8Array();
  const entry = bundle("letters/webgpu", 0, {
    manifest_sha256: createHash("sha256").update(manifest).digest("hex"),
    memory_bytes: 1000,
  });
  const exact = { ...entry, folder: "letters/exact", memory_bytes: 2 ** 30 };
  for (const [file, bytes] of Object.entries(files)) there[`letters/exact/${file}`] = bytes;
  const models = { letters: model([bundle("letters/huge", 100, { largest_buffer_bytes: 2 ** 40 }), exact, entry]) };
  const requests = serve({ format_version: CATALOG_VERSION, generator: "test", models }, there);
  const engine = await Engine.load("letters", {
    catalog: "https://host/all/",
    gpu,
    memoryBudget: 2 ** 24,
    store: false,
  });
  expect(engine.info.model).toBe("letters");
  expect(requests.some((address) => address.includes("letters/huge"))).toBe(false);
  engine.destroy();
  const planned = await Engine.plan("letters", { catalog: "https://host/all/", gpu, memoryBudget: 2 ** 24 });
  expect(planned.totalBytes).toBeGreaterThan(0);
  // A probe refuses the first one.
  const probed: string[] = [];
  const small = await Engine.load("letters", {
    catalog: "https://host/all/",
    gpu,
    store: false,
    probe: (address) => {
      probed.push(address as string);
      const refusal = { reason: "memory", message: "too large", found: 1, needed: 2 } as const;
      const refusals = probed.length === 1 ? [refusal] : [];
      return Promise.resolve({ refusals, fit: null });
    },
  });
  expect(probed.map((address) => address.split("/").at(-2))).toEqual(["exact", "webgpu"]);
  small.destroy();
  // Whoever changes the manifest on its way cannot change the catalog.
  there["letters/webgpu/manifest.json"] = new TextEncoder().encode(`${new TextDecoder().decode(manifest)} `);
  const loading = Engine.load("letters", { catalog: "https://host/all/", gpu, memoryBudget: 2 ** 24, store: false });
  await expect(loading).rejects.toThrow(BundleError);
  await expect(loading).rejects.toThrow(/letters\/webgpu\/manifest.json: has SHA-256 .*, the catalog says/);
  await expect(Engine.load(["letters"], { catalog: "https://host/all/", gpu })).rejects.toThrow(
    "With a catalog, the bundle is the name of a model",
  );
});
