// Searches documents with the browser's index, for tests/demo_encoder/recall.py.
//
//   node dist/tools/search_documents.js URL MODEL < {"documents": {name: Markdown}, "queries": [text], "count": 5}
//
// A server at URL, such as `nearfar serve`, embeds the texts. Prints the passages, and for each mode the indices of
// those that each query finds.

import { text } from "node:stream/consumers";

import type { Embedder, SearchMode } from "../src/retrieval/index.js";
import { RetrievalIndex, readDocument } from "../src/retrieval/index.js";

interface Task {
  readonly documents: Readonly<Record<string, string>>;
  readonly queries: readonly string[];
  readonly count: number;
}

const MODES: readonly SearchMode[] = ["vectors", "words", "hybrid"];

async function main(url: string, model: string): Promise<void> {
  const { documents, queries, count } = JSON.parse(await text(process.stdin)) as Task;
  const embed = async (input: readonly string[]): Promise<Float32Array[]> => {
    const response = await fetch(`${url}/v1/embeddings`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, input, truncate: true }),
    });
    if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
    const { data } = (await response.json()) as { readonly data: readonly { readonly embedding: number[] }[] };
    return data.map(({ embedding }) => Float32Array.from(embedding));
  };
  const [probe] = await embed(["nearfar"]);
  const embedder: Embedder = { model, dimensions: probe?.length ?? 0, embed };
  const index = await RetrievalIndex.open("recall", embedder, { store: false, device: "cpu" });
  const read = Object.entries(documents).map(([id, source]) => ({
    id,
    document: readDocument(source, { format: "markdown" }),
  }));
  await index.add(read);
  const passages = read.flatMap(({ id, document }) => document.passages.map((passage) => ({ id, ...passage })));
  const places = new Map(passages.map(({ id, start }, place) => [`${id} ${start}`, place]));
  const found: Record<string, (number | undefined)[][]> = {};
  for (const mode of MODES) {
    const hits = await Promise.all(queries.map((query) => index.search(query, { count, mode })));
    found[mode] = hits.map((some) => some.map(({ document, passage }) => places.get(`${document} ${passage.start}`)));
  }
  console.log(JSON.stringify({ passages: passages.map(({ id, text: words }) => [id, words]), found }));
}

const [url, model] = process.argv.slice(2);
if (url === undefined || model === undefined) throw new Error("usage: search_documents.js URL MODEL");
await main(url, model);
