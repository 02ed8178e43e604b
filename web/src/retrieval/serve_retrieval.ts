// The worker's side: serves indexes over a port, for connectRetrieval.

import { RequestError } from "../errors.js";
import { serve } from "../worker/serve.js";
import type { WirePort } from "../worker/wire.js";
import type { Embedder } from "./embedder.js";
import type { AddOptions, DocumentInfo, Hit, SearchOptions } from "./retrieval_index.js";
import type { NewDocument } from "./indexed_document.js";
import type { IndexStore } from "./index_store.js";
import { RetrievalIndex } from "./retrieval_index.js";
import type { RemoteIndexOptions } from "./remote_index.js";

/** What the other side calls. A port serves one index. */
class ServedIndex {
  #index: RetrievalIndex | null = null;

  constructor(
    private readonly embedder: Embedder | Promise<Embedder>,
    private readonly store: IndexStore | undefined,
  ) {}

  async open(name: string, { store, ...options }: RemoteIndexOptions): Promise<void> {
    this.#index = await RetrievalIndex.open(name, await this.embedder, { ...options, store: store ?? this.store });
  }

  documents(): Promise<readonly DocumentInfo[]> {
    return this.#opened.documents();
  }

  textOf(id: string): Promise<string | null> {
    return this.#opened.textOf(id);
  }

  add(documents: readonly NewDocument[], options?: AddOptions): Promise<void> {
    return this.#opened.add(documents, options);
  }

  delete(id: string): Promise<boolean> {
    return this.#opened.delete(id);
  }

  search(query: string, options?: SearchOptions): Promise<Hit[]> {
    return this.#opened.search(query, options);
  }

  save(): Promise<void> {
    return this.#opened.save();
  }

  close(): void {
    this.#index?.close();
    this.#index = null;
  }

  get #opened(): RetrievalIndex {
    if (this.#index === null) throw new RequestError("The worker's index is not open; connect again");
    return this.#index;
  }
}

/**
 * Serve an index to the other side of ``port``. Texts are embedded, stored and compared in this worker. ``store``
 * replaces this origin's file system. Returns a function that ends the calls and closes the port.
 */
export function serveRetrieval(port: WirePort, embedder: Embedder | Promise<Embedder>, store?: IndexStore): () => void {
  const target = new ServedIndex(embedder, store);
  const stop = serve(port, target);
  return () => {
    stop();
    target.close();
  };
}
