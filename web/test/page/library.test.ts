// The index of the documents page, with a fake embedding model, and what the page keeps beside it.

import { expect, it } from "vitest";

import { Library } from "../../page/documents/library.js";
import { KeptNames } from "../../page/kept_names.js";
import { IndexStore, RetrievalIndex, readDocument } from "../../src/retrieval/index.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";

const EMBEDDER = {
  model: "m",
  dimensions: 2,
  embed: (texts: readonly string[]) => Promise.resolve(texts.map(() => Float32Array.of(1, 0))),
};

function document(id: string) {
  return { id, document: readDocument(`The text of ${id}.`, { format: "text" }) };
}

async function tabs(): Promise<() => Promise<Library>> {
  const store = await IndexStore.open(memoryDisk().root, memoryLocks());
  return () => Library.open(() => RetrievalIndex.open("test", EMBEDDER, { store, device: "cpu" }));
}

async function names(library: Library): Promise<readonly string[]> {
  return (await library.index.documents()).map(({ id }) => id).sort();
}

it("a document is saved before the next one is read", async () => {
  const open = await tabs();
  const library = await open();
  await library.add(document("a.txt"), () => undefined);
  // As after a reload in the middle of the batch.
  expect(await names(await open())).toEqual(["a.txt"]);
});

it("tabs that change the index at the same time lose nothing of each other", async () => {
  const open = await tabs();
  const [one, other] = [await open(), await open()];
  await one.add(document("a.txt"), () => undefined);
  await Promise.all([
    other.add(document("b.txt"), () => undefined),
    other.add(document("c.txt"), () => undefined),
    one.add(document("d.txt"), () => undefined),
  ]);
  await one.delete("c.txt");
  await other.reload();
  for (const library of [await open(), one, other]) expect(await names(library)).toEqual(["a.txt", "b.txt", "d.txt"]);
});

it("names are kept for the next page, and without storage for this one", () => {
  const stored = new Map<string, string>([["broken", "{"]]);
  const storage = {
    getItem: (key: string) => stored.get(key) ?? null,
    setItem: (key: string, value: string) => void stored.set(key, value),
  } as Storage;
  const kept = new KeptNames("locked", () => storage);
  kept.add("a", "b");
  kept.delete("a");
  expect([...new KeptNames("locked", () => storage).names]).toEqual(["b"]);
  expect([...new KeptNames("broken", () => storage).names]).toEqual([]);
  const none = new KeptNames("locked", () => {
    throw new DOMException("no storage", "SecurityError");
  });
  none.add("c");
  expect([...none.names]).toEqual(["c"]);
});
