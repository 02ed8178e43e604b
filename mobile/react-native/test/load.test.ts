import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, readFile, readdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { expect, test } from "vitest";

import { CONTEXT, lettersOnnx, stubRuntime } from "../../../web/test/onnx/letters_onnx.js";
import { answerOf } from "../../../web/test/engine/fake_model.js";
import { lettersBundle } from "../../../web/test/letters_bundle.js";
import { PIECE_BYTES, downloadFiles } from "../src/download.js";
import { load, removeBundle } from "../src/load.js";
import type { NodeFiles } from "./node_files.js";
import { nodeFiles } from "./node_files.js";

const ADDRESS = "https://example.org/bundle?key=1";

interface Server {
  readonly fetch: typeof fetch;
  /** The file and range of each request. */
  readonly requests: string[];
  /** The number of requests that succeed before the network fails. */
  left: number;
}

function serverOf(files: Readonly<Record<string, Uint8Array<ArrayBuffer>>>): Server {
  const server: Server = {
    requests: [],
    left: Infinity,
    fetch: ((url: string, init?: RequestInit) => {
      const name = new URL(url).pathname.replace("/bundle/", "");
      const range = /bytes=(\d+)-(\d+)/.exec((init?.headers as Record<string, string> | undefined)?.Range ?? "");
      server.requests.push(range === null ? name : `${name} ${range[1] ?? ""}-${range[2] ?? ""}`);
      if (--server.left < 0) return Promise.reject(new TypeError("Network request failed"));
      const bytes = files[name];
      if (bytes === undefined || new URL(url).search !== "?key=1")
        return Promise.resolve(new Response(null, { status: 404 }));
      return Promise.resolve(
        range === null
          ? new Response(bytes)
          : new Response(bytes.slice(Number(range[1]), Number(range[2]) + 1), { status: 206 }),
      );
    }) as typeof fetch,
  };
  return server;
}

async function phone(): Promise<NodeFiles> {
  return nodeFiles(await mkdtemp(join(tmpdir(), "phone-")));
}

async function answer(
  engine: Awaited<ReturnType<typeof load>>,
  promptIds: readonly number[],
): Promise<readonly number[]> {
  const ids: number[] = [];
  for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens: 3 })) ids.push(tokenId);
  return ids;
}

test("a bundle is downloaded and answers; later loads request only its manifest, or nothing offline", async () => {
  const { files, manifest } = lettersOnnx();
  const [server, folder, { ort, log }] = [serverOf(files), await phone(), stubRuntime()];
  const phases: string[] = [];
  const options = {
    files: folder,
    ort,
    fetch: server.fetch,
    onProgress: ({ phase }: { phase: string }) => phases.push(phase),
  };
  const engine = await load(ADDRESS, options);
  expect(server.requests.map((each) => each.split(" ")[0])).toEqual([
    "manifest.json",
    "tokenizer.json",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
  ]);
  expect([phases[0], phases.at(-1)]).toEqual(["manifest", "ready"]);
  const path = log.created[0]?.model as string;
  expect(path.startsWith(folder.documents) && path.endsWith("/onnx/model.onnx")).toBe(true);
  expect(await readFile(path, "utf8")).toBe("graph");
  expect(engine.info).toMatchObject({ target: "onnx", model: manifest.model, context: CONTEXT });
  const { spec } = manifest;
  const expected = answerOf([1, 2], 3, CONTEXT).tokens.filter((id) => !spec.eos_token_ids.includes(id));
  expect((await answer(engine, [1, 2])).slice(0, 1)).toEqual(expected.slice(0, 1));
  engine.destroy();
  server.requests.length = 0;
  (await load(ADDRESS, options)).destroy();
  expect(server.requests).toEqual(["manifest.json"]);
  server.left = 0;
  (await load(ADDRESS, options)).destroy();
  await removeBundle(ADDRESS, folder);
  expect(await readdir(join(folder.documents, "nearfar"))).toEqual([]);
});

test("an interrupted download continues, also after the app was stopped", async () => {
  const bytes = Uint8Array.from(randomBytes(2 * PIECE_BYTES + 1000));
  const entry = { file: "onnx/data", size: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") };
  const [server, folder] = [serverOf({ "onnx/data": bytes }), await phone()];
  const counts: number[] = [];
  const options = { fetch: server.fetch, signal: undefined, onBytes: (count: number) => counts.push(count) };
  server.left = 1;
  await expect(downloadFiles(folder, `${folder.documents}/b`, ADDRESS, [entry], options)).rejects.toMatchObject({
    code: "bundle_error",
  });
  server.left = Infinity;
  server.requests.length = 0;
  counts.length = 0;
  await downloadFiles(folder, `${folder.documents}/b`, ADDRESS, [entry], options);
  expect(server.requests).toEqual([
    `onnx/data ${PIECE_BYTES}-${2 * PIECE_BYTES - 1}`,
    `onnx/data ${2 * PIECE_BYTES}-${bytes.length - 1}`,
  ]);
  expect(counts.reduce((sum, count) => sum + count, 0)).toBe(bytes.length);
  expect(Buffer.compare(await readFile(join(folder.documents, "b/onnx/data")), bytes)).toBe(0);
});

test("a damaged file is downloaded once more, then it is a BundleError", async () => {
  const bytes = Uint8Array.of(1, 2, 3);
  const entry = { file: "data", size: 3, sha256: createHash("sha256").update(bytes).digest("hex") };
  const folder = await phone();
  const options = { signal: undefined, onBytes: () => undefined };
  // The partial file of the stopped app is damaged.
  await folder.makeFolder(join(folder.documents, "b"));
  await writeFile(join(folder.documents, "b/data.part"), Uint8Array.of(9));
  await downloadFiles(folder, `${folder.documents}/b`, ADDRESS, [entry], {
    ...options,
    fetch: serverOf({ data: bytes }).fetch,
  });
  expect([...(await readFile(join(folder.documents, "b/data")))]).toEqual([1, 2, 3]);
  const damaged = downloadFiles(folder, `${folder.documents}/c`, ADDRESS, [entry], {
    ...options,
    fetch: serverOf({ data: Uint8Array.of(1, 2, 4) }).fetch,
  });
  await expect(damaged).rejects.toThrow("data: has SHA-256");
});

test("too little storage is a StorageError with both sizes, before and during the download", async () => {
  const { files } = lettersOnnx();
  const folder = await phone();
  const options = { files: folder, ort: stubRuntime().ort, fetch: serverOf(files).fetch };
  folder.free = 1000;
  await expect(load(ADDRESS, options)).rejects.toMatchObject({
    code: "storage_error",
    details: { availableBytes: 1000 },
  });
  const full = {
    ...folder,
    freeBytes: () => Promise.resolve(null),
    append: () => Promise.reject(new Error("disk full")),
  };
  await expect(load(ADDRESS, { ...options, files: full })).rejects.toMatchObject({ code: "storage_error" });
});

test("a bundle for WebGPU, an address without a bundle and an abort are reported", async () => {
  const options = { files: await phone(), ort: stubRuntime().ort };
  await expect(load(ADDRESS, { ...options, fetch: serverOf(lettersBundle().files).fetch })).rejects.toThrow(
    "phones need --target onnx",
  );
  await expect(load(ADDRESS, { ...options, fetch: serverOf({}).fetch })).rejects.toThrow("answers 404");
  const signal = AbortSignal.abort(new Error("enough"));
  await expect(load(ADDRESS, { ...options, signal, fetch: serverOf(lettersOnnx().files).fetch })).rejects.toThrow(
    "enough",
  );
});

test("a newer version replaces the older one", async () => {
  const folder = await phone();
  const ort = stubRuntime().ort;
  (await load(ADDRESS, { files: folder, ort, fetch: serverOf(lettersOnnx().files).fetch })).destroy();
  const [older] = await readdir(join(folder.documents, "nearfar"));
  (
    await load(ADDRESS, { files: folder, ort, fetch: serverOf(lettersOnnx({ generator: "newer" }).files).fetch })
  ).destroy();
  const now = await readdir(join(folder.documents, "nearfar"));
  expect(now).toHaveLength(2);
  expect(older?.endsWith(".json") === true ? now : now.includes(older ?? "")).not.toBe(true);
});

test("a stored bundle of an older format is refused offline, replaced by a newer one, and removable", async () => {
  const { files, manifest } = lettersOnnx();
  const [server, folder, { ort }] = [serverOf(files), await phone(), stubRuntime()];
  const options = { files: folder, ort, fetch: server.fetch };
  (await load(ADDRESS, options)).destroy();
  const record = join(
    folder.documents,
    "nearfar",
    (await readdir(join(folder.documents, "nearfar"))).find((name) => name.endsWith(".json")) ?? "",
  );
  const makeOlder = () => writeFile(record, JSON.stringify({ ...manifest, format_version: 1 }));
  await makeOlder();
  server.left = 0;
  await expect(load(ADDRESS, options)).rejects.toThrow(
    /has format version 1, this @nearfar\/web reads \d+; compile the bundle again/,
  );
  server.left = Infinity;
  (await load(ADDRESS, options)).destroy();
  await makeOlder();
  await removeBundle(ADDRESS, folder);
  expect((await readdir(join(folder.documents, "nearfar"))).filter((name) => name.endsWith(".json"))).toEqual([]);
});
