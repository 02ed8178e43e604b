import { afterEach, expect, test } from "vitest";

import { RequestError, WorkerError } from "../../src/errors.js";
import { readDocument } from "../../src/retrieval/document.js";
import { IndexStore } from "../../src/retrieval/index_store.js";
import { connectRetrieval } from "../../src/retrieval/remote_index.js";
import { serveRetrieval } from "../../src/retrieval/serve_retrieval.js";
import type { RemoteIndexOptions } from "../../src/retrieval/remote_index.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";
import { fakeEmbedder } from "./fake_embedder.js";

const SOURCE = "# Foxes\n\nA red fox sleeps.\n";
const document = { id: "a", document: readDocument(SOURCE, { format: "markdown" }) };
const stops: (() => void)[] = [];

afterEach(() => {
  for (const stop of stops.splice(0)) stop();
});

async function connected(store: IndexStore, options: RemoteIndexOptions = {}, model = "fake") {
  const { port1, port2 } = new MessageChannel();
  stops.push(serveRetrieval(port2, fakeEmbedder(model), store));
  return connectRetrieval(port1, "notes", options);
}

test("an index in a worker adds, finds, saves and deletes like a local one", async () => {
  const store = await IndexStore.open(memoryDisk().root, memoryLocks());
  const index = await connected(store);
  const progress: number[] = [];
  await index.add([document], { onProgress: (done) => progress.push(done) });
  expect(progress).toEqual([1]);
  await index.save();
  const again = await connected(store);
  expect(await again.documents()).toEqual([{ id: "a", title: "a", passages: 1 }]);
  expect(await again.textOf("a")).toBe(SOURCE);
  expect((await again.search("red fox", { count: 1 }))[0]?.passage.text).toBe("A red fox sleeps.");
  expect(await again.delete("a")).toBe(true);
  await expect(again.save()).resolves.toBeUndefined();
  await expect(connected(store, {}, "other")).rejects.toThrow(RequestError);
  await expect(again.search("fox", { count: 0 })).rejects.toThrow(RequestError);
});

test("an abort reaches the worker, and a closed index answers nothing", async () => {
  const index = await connected(await IndexStore.open(memoryDisk().root, memoryLocks()), { store: false });
  await expect(index.add([document], { signal: AbortSignal.abort(new Error("enough")) })).rejects.toThrow("enough");
  await expect(index.save()).rejects.toThrow(/store: false/);
  index.close();
  await expect.poll(() => index.documents().catch((error: unknown) => error)).toBeInstanceOf(WorkerError);
});
