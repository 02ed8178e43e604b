import { mkdir, mkdtemp, readdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

import { afterEach, expect, test } from "vitest";

import type { LoadProgress } from "../../../web/src/load_options.js";
import { lettersOnnx, stubRuntime } from "../../../web/test/onnx/letters_onnx.js";
import { FakePhone, usePhone } from "../../capacitor/test/fake_capacitor.js";
import { load, removeBundle } from "../../react-native/src/load.js";
import { nodeFiles } from "../../react-native/test/node_files.js";
import { backgroundDownload } from "../src/index.js";

const ADDRESS = "https://example.org/bundle";

afterEach(() => {
  usePhone(null);
});

/** A phone whose native side writes into the app's documents folder, or into another one. */
async function start(written?: string) {
  const { files: served } = lettersOnnx();
  const phone = new FakePhone(new Map(Object.entries(served).map(([file, bytes]) => [`${ADDRESS}/${file}`, bytes])));
  usePhone(phone);
  const files = nodeFiles(await mkdtemp(join(tmpdir(), "phone-")));
  const put = phone.files.set.bind(phone.files);
  const writes: Promise<void>[] = [];
  phone.files.set = (name, bytes) => {
    const path = join(written ?? files.documents, "nearfar", name);
    if (name.includes("/") && !name.endsWith("manifest.json"))
      writes.push(mkdir(dirname(path), { recursive: true }).then(() => writeFile(path, bytes)));
    return put(name, bytes);
  };
  const reports: LoadProgress[] = [];
  const fetched: string[] = [];
  const options = {
    files: { ...files, size: async (path: string) => (await Promise.all(writes), files.size(path)) },
    ort: stubRuntime().ort,
    onProgress: (progress: LoadProgress) => void reports.push(progress),
    fetch: ((url: string) => {
      fetched.push(url);
      return Promise.resolve(new Response(served[url.slice(ADDRESS.length + 1)]));
    }) as typeof fetch,
  };
  return { phone, files, options, reports, fetched };
}

test("load leaves the files to the native side, with the progress of every load", async () => {
  const { phone, files, options, reports, fetched } = await start();
  const download = backgroundDownload({ wifiOnly: true });
  const engine = await load(ADDRESS, { ...options, download });
  engine.destroy();
  expect(fetched).toEqual([`${ADDRESS}/manifest.json`]);
  expect(phone.calls).toEqual(["start on Wi-Fi"]);
  const phases = reports.map(({ phase }) => phase).filter((phase, index, all) => phase !== all[index - 1]);
  expect(phases).toEqual(["manifest", "upload", "download", "upload", "ready"]);
  const last = reports.at(-1);
  expect(last).toMatchObject({ loadedBytes: last?.totalBytes, storedBytes: 0 });
  reports.length = 0;
  (await load(ADDRESS, { ...options, download })).destroy();
  expect(reports.at(-1)).toMatchObject({ loadedBytes: last?.totalBytes, storedBytes: last?.totalBytes });
  expect(phone.listeners).toBe(0);
  await removeBundle(ADDRESS, files);
  expect(await readdir(join(files.documents, "nearfar"))).toEqual([]);
});

test("the native side's errors, an abort and a foreign folder are reported", async () => {
  const { phone, options } = await start();
  const download = backgroundDownload();
  phone.waits = true;
  const abort = new AbortController();
  const loading = load(ADDRESS, { ...options, download, signal: abort.signal });
  await expect.poll(() => phone.jobs.size).toBe(1);
  abort.abort(new Error("enough"));
  await expect(loading).rejects.toThrow("enough");
  expect(phone.calls.at(-1)).toBe("stop");
  phone.waits = false;
  (phone.server as Map<string, Uint8Array<ArrayBuffer>>).set(`${ADDRESS}/tokenizer.json`, Uint8Array.of(1));
  await expect(load(ADDRESS, { ...options, download })).rejects.toMatchObject({
    code: "bundle_error",
    details: { file: "tokenizer.json" },
  });
  const elsewhere = await start(await mkdtemp(join(tmpdir(), "elsewhere-")));
  await expect(load(ADDRESS, { ...elsewhere.options, download: backgroundDownload() })).rejects.toThrow(
    "was downloaded to /documents/nearfar/",
  );
});
