import { expect, test } from "vitest";

import { RequestError, StorageError } from "../../src/errors.js";
import { readDocument } from "../../src/retrieval/document.js";
import type { Embedder } from "../../src/retrieval/embedder.js";
import { IndexStore } from "../../src/retrieval/index_store.js";
import type { NewDocument } from "../../src/retrieval/indexed_document.js";
import type { IndexOptions } from "../../src/retrieval/retrieval_index.js";
import { RetrievalIndex } from "../../src/retrieval/retrieval_index.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";
import { fakeEmbedder } from "./fake_embedder.js";

const FOXES = "# Foxes\n\nA red fox sleeps in its den.\n\n# Food\n\nIt eats mice and berries.\n";
const HOUSES = "# Houses\n\nA roof keeps out the rain.\n";

function markdown(id: string, source: string): NewDocument {
  return { id, title: `${id}.md`, document: readDocument(source, { format: "markdown" }) };
}

async function opened(options: IndexOptions = { store: false }, embedder: Embedder = fakeEmbedder()) {
  return RetrievalIndex.open("notes", embedder, options);
}

test.each(["hybrid", "vectors", "words"] as const)("a search by %s finds the passage with its place", async (mode) => {
  const index = await opened();
  await index.add([markdown("foxes", FOXES), markdown("houses", HOUSES)]);
  const [hit] = await index.search("which berries and mice does it eat?", { mode, count: 2 });
  expect(hit).toMatchObject({ document: "foxes", title: "foxes.md", passage: { headings: ["Food"] } });
  expect(FOXES.slice(hit?.passage.start, hit?.passage.end)).toBe("It eats mice and berries.");
  expect(await index.textOf("foxes")).toBe(FOXES);
  expect(index.size).toBe(3);
});

test("a document with the same id is replaced, and a deleted one is never found", async () => {
  const index = await opened();
  await index.add([markdown("a", FOXES), markdown("b", HOUSES)]);
  await index.add([markdown("a", "A whale swims.")]);
  expect(await index.documents()).toEqual([
    { id: "b", title: "b.md", passages: 1 },
    { id: "a", title: "a.md", passages: 1 },
  ]);
  expect(await index.delete("b")).toBe(true);
  expect(await index.delete("b")).toBe(false);
  for (const mode of ["hybrid", "vectors", "words"] as const) {
    const hits = await index.search("roof rain fox whale", { mode, count: 100 });
    expect(hits.map((hit) => hit.passage.text)).toEqual(["A whale swims."]);
  }
});

test("after many removals the slots are reclaimed, and the results stay the same", async () => {
  const index = await opened();
  const numbered = (from: number, to: number) =>
    Array.from({ length: to - from }, (_, offset) => markdown(`d${from + offset}`, `number ${from + offset} of all`));
  await index.add(numbered(0, 600));
  for (let document = 0; document < 590; document++) await index.delete(`d${document}`);
  expect(index.size).toBe(10);
  await index.add(numbered(600, 602));
  expect((await index.search("number 601", { mode: "words" }))[0]?.document).toBe("d601");
  expect((await index.search("number 595 of all"))[0]?.document).toBe("d595");
});

test("if the model fails in the middle, nothing was added", async () => {
  const embedder = fakeEmbedder();
  let calls = 0;
  const failing: Embedder = {
    ...embedder,
    embed: (...args) => (++calls === 2 ? Promise.reject(new RequestError("too long")) : embedder.embed(...args)),
  };
  const index = await opened({ store: false }, failing);
  const many = Array.from({ length: 40 }, (_, number) => markdown(`d${number}`, `text ${number}`));
  await expect(index.add(many)).rejects.toThrow("too long");
  expect([index.size, await index.documents()]).toEqual([0, []]);
});

test("what is saved is found again, by saves that write only what is new", async () => {
  const disk = memoryDisk();
  const store = await IndexStore.open(disk.root, memoryLocks());
  const index = await opened({ store, type: "int8" });
  await index.add([markdown("a", FOXES), markdown("b", HOUSES)]);
  await index.save();
  const first = [...disk.files.keys()];
  await index.add([markdown("c", "A whale swims.")]);
  await index.delete("b");
  await index.save();
  expect(first.every((file) => disk.files.has(file))).toBe(true);

  const again = await opened({ store });
  expect((await again.documents()).map(({ id }) => id)).toEqual(["a", "c"]);
  const hits = await index.search("red whale", { mode: "vectors", count: 9 });
  expect(await again.search("red whale", { mode: "vectors", count: 9 })).toEqual(hits);
  expect(await again.search("red whale")).toEqual(await index.search("red whale"));
  expect(await store.list()).toEqual(["notes"]);
  await store.delete("notes");
  expect([await store.list(), disk.files.size]).toEqual([[], 0]);
});

test("an index of another model is refused, and so is another type of vectors", async () => {
  const store = await IndexStore.open(memoryDisk().root, memoryLocks());
  const index = await opened({ store });
  await index.add([markdown("a", FOXES)]);
  await index.save();
  await expect(opened({ store }, fakeEmbedder("other"))).rejects.toThrow(/another embedding model/);
  await expect(opened({ store, type: "int8" })).rejects.toThrow(/vectors in float16, not int8/);
});

test("a save that does not fit leaves the saved index as it was", async () => {
  const disk = memoryDisk();
  const store = await IndexStore.open(disk.root, memoryLocks());
  const index = await opened({ store });
  await index.add([markdown("a", FOXES)]);
  await index.save();
  disk.capacity = 2500;
  await index.add([markdown("b", "word ".repeat(2000))]);
  await expect(index.save()).rejects.toThrow(StorageError);
  expect((await (await opened({ store })).documents()).map(({ id }) => id)).toEqual(["a"]);
  disk.capacity = Infinity;
  await index.save();
  expect((await (await opened({ store })).documents()).map(({ id }) => id)).toEqual(["a", "b"]);
});

test("a second tab does not overwrite what the first one saved", async () => {
  const store = await IndexStore.open(memoryDisk().root, memoryLocks());
  const [first, second] = [await opened({ store }), await opened({ store })];
  await first.add([markdown("a", FOXES)]);
  await first.save();
  await second.add([markdown("b", HOUSES)]);
  await expect(second.save()).rejects.toThrow(/saved by another tab/);
  expect((await (await opened({ store })).documents()).map(({ id }) => id)).toEqual(["a"]);
});

test.each(["truncated", "changed", "missing"])("a segment that is %s is a StorageError", async (how) => {
  const disk = memoryDisk();
  const store = await IndexStore.open(disk.root, memoryLocks());
  const index = await opened({ store });
  await index.add([markdown("a", FOXES)]);
  await index.save();
  const [path, bytes] = [...disk.files].find(([file]) => file.includes("segment")) ?? ["", new Uint8Array()];
  if (how === "missing") disk.files.delete(path);
  else if (how === "truncated") disk.files.set(path, bytes.slice(0, -1));
  else bytes.set([1], bytes.length - 1);
  await expect(opened({ store })).rejects.toThrow(/saved index 'notes' cannot be read/);
});

test("wrong documents, counts and queries are RequestErrors", async () => {
  const index = await opened();
  const passages = [{ text: "b", start: 0, end: 1, headings: [] }];
  await expect(index.add([{ id: "a", document: { text: "a", passages } }])).rejects.toThrow(/is not the text from 0/);
  await expect(index.add([markdown("a", FOXES), markdown("a", FOXES)])).rejects.toThrow(/same id/);
  await expect(index.search(" ")).rejects.toThrow(/query is empty/);
  await expect(index.search("fox", { count: 0 })).rejects.toThrow(/count is 0/);
  await expect(index.save()).rejects.toThrow(/store: false/);
  expect(await index.search("fox")).toEqual([]);
});

test("an abort ends an addition, and nothing was added", async () => {
  const index = await opened();
  const controller = new AbortController();
  const many = Array.from({ length: 70 }, (_, number) => markdown(`d${number}`, `text ${number}`));
  const adding = index.add(many, {
    signal: controller.signal,
    onProgress: () => {
      controller.abort(new Error("enough"));
    },
  });
  await expect(adding).rejects.toThrow("enough");
  expect(index.size).toBe(0);
});
