import { expect, test, vi } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import { createLanguageModel } from "../../src/language_model/index.js";
import type { LoadProgress } from "../../src/load_options.js";
import { BundleError, DeviceError } from "../../src/errors.js";
import { BundleStore } from "../../src/store/bundle_store.js";
import { storedSource } from "../../src/store/stored_source.js";
import { fakeEngine, fakeModel } from "../api/fake_model.js";
import { lettersBundle, memorySource } from "../letters_bundle.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";

test("an engine that is not loaded yet is downloadable, then downloading with progress, then available", async () => {
  const { model } = fakeModel("x");
  let report: (progress: LoadProgress) => void = () => undefined;
  let finish: (engine: EngineApi) => void = () => undefined;
  const lazy = createLanguageModel(({ onProgress }) => {
    report = onProgress;
    return new Promise((resolve) => (finish = resolve));
  });
  expect(await lazy.availability()).toBe("downloadable");
  const seen: unknown[] = [];
  const monitor = (target: EventTarget): void => {
    target.addEventListener("downloadprogress", (event) =>
      seen.push([Reflect.get(event, "loaded"), Reflect.get(event, "total")]),
    );
  };
  const created = lazy.create({ monitor });
  await new Promise((resolve) => setTimeout(resolve, 0));
  expect(await lazy.availability()).toBe("downloading");
  report({ phase: "download", loadedBytes: 1, storedBytes: 0, totalBytes: 4, compiledKernels: 0, totalKernels: 0 });
  finish(fakeEngine(model));
  expect(await (await created).prompt("a")).toBe("x");
  expect(seen).toEqual([
    [0, 1],
    [0.25, 1],
    [1, 1],
  ]);
  expect(await lazy.availability()).toBe("available");
  expect(await lazy.availability({ expectedOutputs: [{ type: "audio" }] })).toBe("unavailable");
});

test("the next create tries a failed load again", async () => {
  const { model } = fakeModel("x");
  let loads = 0;
  const factory = createLanguageModel(() =>
    ++loads === 1 ? Promise.reject(new BundleError("no network")) : Promise.resolve(fakeEngine(model)),
  );
  await expect(factory.create()).rejects.toMatchObject({ name: "UnknownError", message: "no network" });
  expect(await (await factory.create()).prompt("a")).toBe("x");
});

test("a completely stored bundle is available before it is loaded, and a partly stored one is not", async () => {
  const disk = memoryDisk();
  const locks = memoryLocks();
  vi.stubGlobal("navigator", { storage: { getDirectory: () => Promise.resolve(disk.root) }, locks });
  vi.stubGlobal(
    "FileSystemFileHandle",
    Object.assign(() => undefined, { prototype: { createWritable: 0 } }),
  );
  const { manifest, files } = lettersBundle();
  const address = "https://host/bundle/";
  const factory = createLanguageModel(() => Promise.reject(new Error("loaded")), { bundle: "https://host/bundle" });
  expect(await factory.availability()).toBe("downloadable");
  const store = await BundleStore.open();
  if (store === null) throw new Error("no store");
  const source = { ...memorySource(files), location: address };
  const signal = new AbortController().signal;
  const stored = await storedSource(source, store, signal);
  await stored?.read({ file: "manifest.json" }, signal, () => undefined);
  await stored?.begin(manifest);
  expect(await factory.availability()).toBe("downloadable");
  for (const file of [...manifest.shards, ...manifest.files]) await stored?.read(file, signal, () => undefined);
  await stored?.finish();
  expect(await factory.availability()).toBe("available");
  expect(
    await createLanguageModel(() => Promise.reject(new Error("loaded")), {
      bundle: "https://host/other/",
    }).availability(),
  ).toBe("downloadable");
  vi.unstubAllGlobals();
});

test("a device without WebGPU is a NotSupportedError with the reason", async () => {
  const reason = "This browser has no WebGPU; use another";
  const factory = createLanguageModel(() => Promise.reject(new DeviceError(reason, { missing: "navigator.gpu" })));
  await expect(factory.create()).rejects.toMatchObject({ name: "NotSupportedError", message: reason });
});

const AUDIO = { expectedInputs: [{ type: "audio" }] };

test("before a bundle is loaded, its manifest says what it reads", async () => {
  const manifests: Record<string, object | number> = {
    "https://host/blind/manifest.json?key=1": { images: null, sounds: null },
    "https://host/seeing/manifest.json": { images: {}, sounds: {} },
    "https://host/gone/manifest.json": 404,
  };
  const fetched: string[] = [];
  vi.stubGlobal("fetch", (address: URL) => {
    fetched.push(address.href);
    const found = manifests[address.href];
    if (found === undefined) return Promise.reject(new TypeError("no network"));
    return Promise.resolve(typeof found === "number" ? new Response("{}", { status: found }) : Response.json(found));
  });
  const loader = () => Promise.reject(new DeviceError("loaded"));
  const images = { expectedInputs: [{ type: "image" }] };
  const found = async (bundle: string | undefined, more: object = {}) => {
    const factory = createLanguageModel(loader, { bundle, ...more });
    return [await factory.availability(images), await factory.availability(AUDIO), await factory.availability()];
  };
  const [no, yes] = ["unavailable", "downloadable"];
  expect(await found("https://host/blind?key=1")).toEqual([no, no, yes]);
  expect(await found("https://host/blind/?key=1", { transcriber: true })).toEqual([no, yes, yes]);
  expect(await found("https://host/seeing/")).toEqual([yes, yes, yes]);
  for (const bundle of ["https://host/gone/", "https://host/offline/", undefined])
    expect(await found(bundle)).toEqual([yes, yes, yes]);
  // What will be refused is not downloaded.
  const blind = createLanguageModel(loader, { bundle: "https://host/blind?key=1" });
  await expect(blind.create(AUDIO)).rejects.toMatchObject({
    name: "NotSupportedError",
    message: expect.stringContaining("audio") as string,
  });
  const count = fetched.length;
  await expect(blind.create()).rejects.toThrow("loaded");
  expect(fetched.length).toBe(count);
  vi.unstubAllGlobals();
});
