// An index of documents: passages with their vectors and their words, searched by both.

import { DeviceError, RequestError } from "../errors.js";
import { check, readParams, signal as signalCheck } from "../api/params.js";
import { Collection } from "./collection.js";
import type { Passage } from "./document.js";
import type { Embedder } from "./embedder.js";
import { GpuVectors } from "./gpu_vectors.js";
import type { IndexKind, SavedIndex, SegmentEntry } from "./index_store.js";
import { IndexStore } from "./index_store.js";
import type { NewDocument } from "./indexed_document.js";
import { indexedDocument, searchText } from "./indexed_document.js";
import type { Ranked } from "./ranks.js";
import { fuse } from "./ranks.js";
import type { VectorType } from "./vectors.js";
import { MAX_VECTORS, VECTOR_TYPES } from "./vectors.js";

/** ``hybrid`` fuses the ranking by vectors and the ranking by words. */
export type SearchMode = "hybrid" | "vectors" | "words";

export interface IndexOptions {
  /** How vectors are stored, float16 by default. int8 takes half the memory. */
  readonly type?: VectorType | undefined;
  /**
   * Where vectors are compared: by default on the GPU if there is one and the index has at least 2,000 passages, else
   * in JavaScript.
   */
  readonly device?: "auto" | "gpu" | "cpu" | undefined;
  /** false: the index is only in memory. */
  readonly store?: IndexStore | false | undefined;
  /** In place of navigator.gpu. */
  readonly gpu?: GPU | undefined;
}

export interface AddOptions {
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((done: number, total: number) => void) | undefined;
}

export interface SearchOptions {
  /** The number of passages, 5 by default. */
  readonly count?: number | undefined;
  readonly mode?: SearchMode | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** A passage that was found. */
export interface Hit {
  /** The document's id and title. */
  readonly document: string;
  readonly title: string;
  readonly passage: Passage;
  /** The cosine in mode "vectors", BM25 in mode "words", and the sum of reciprocal ranks in mode "hybrid". */
  readonly score: number;
  /** The cosine of the question's and the passage's vector; null if the passage was not among those compared. */
  readonly similarity: number | null;
}

export interface DocumentInfo {
  readonly id: string;
  readonly title: string;
  readonly passages: number;
}

const BATCH = 32;
const MAX_COUNT = 1000;
/** Each ranking contributes at least this many passages to a hybrid search. */
const FUSED = 50;
const GPU_FROM = 2000;
const MAX_SEGMENTS = 32;
/** Removed slots are reclaimed once there are more of them than others, and more than this. */
const COMPACTED_FROM = 256;

const SEARCH_CHECKS = {
  count: `integer 1..${MAX_COUNT}`,
  mode: "=hybrid|vectors|words",
  signal: signalCheck,
};
const INDEX_CHECKS = {
  type: `=${VECTOR_TYPES.join("|")}`,
  device: "=auto|gpu|cpu",
  store: check("an IndexStore or false", (value) => value === false || value instanceof IndexStore),
  gpu: check("a GPU", (value) => typeof value === "object"),
};

/** The methods of an index, wherever it runs: `RetrievalIndex` implements them, and connectRetrieval returns them. */
export type IndexApi = Pick<
  RetrievalIndex,
  "name" | "documents" | "textOf" | "add" | "delete" | "search" | "save" | "close"
>;

export class RetrievalIndex {
  #collection: Collection;
  #gpu: Promise<GpuVectors | null> | null = null;
  #saved: SavedIndex | null = null;
  /** The saved segment of each document that has one. */
  #segments = new Map<string, string>();
  #last: Promise<unknown> = Promise.resolve();

  private constructor(
    readonly name: string,
    private readonly kind: IndexKind,
    private readonly embedder: Embedder,
    private readonly store: IndexStore | null,
    private readonly options: Pick<IndexOptions, "device" | "gpu">,
  ) {
    this.#collection = new Collection(kind.type, kind.dimensions);
  }

  /**
   * Open the saved index of this name, or an empty one. Throws RequestError if the index was made by another model or
   * with another type of vectors, and StorageError if it cannot be read.
   */
  static async open(name: string, embedder: Embedder, options: IndexOptions = {}): Promise<RetrievalIndex> {
    const { type, device, store: given, gpu } = readParams(options, INDEX_CHECKS) as IndexOptions;
    const store = given === false ? null : (given ?? (await IndexStore.open()));
    const saved = (await store?.read(name)) ?? null;
    if (saved !== null) requireKind(name, saved, embedder, type);
    const { model, dimensions } = embedder;
    const kind = saved ?? { model, dimensions, type: type ?? "float16" };
    const index = new RetrievalIndex(name, kind, embedder, store, { device, gpu });
    if (store !== null && saved !== null) await index.#load(store, saved);
    return index;
  }

  /** The number of passages. */
  get size(): number {
    return this.#collection.vectors.size;
  }

  /** The documents, in the order in which they were added. */
  documents(): Promise<readonly DocumentInfo[]> {
    return this.#inTurn(() =>
      Promise.resolve(
        this.#collection.documents.map(({ id, title, passages }) => ({ id, title, passages: passages.length })),
      ),
    );
  }

  /** The readable text of a document; null if there is none with this id. */
  textOf(id: string): Promise<string | null> {
    return this.#inTurn(() => Promise.resolve(this.#collection.get(id)?.text ?? null));
  }

  /**
   * Add documents, or replace those with the same ids: all of them, or none if an error is thrown. Throws RequestError
   * for wrong documents, for more than 100,000 passages, and for passages that are too long for the model; DeviceError,
   * or the signal's reason.
   */
  async add(documents: readonly NewDocument[], { signal, onProgress }: AddOptions = {}): Promise<void> {
    const added = documents.map(indexedDocument);
    const ids = new Set(added.map(({ id }) => id));
    if (ids.size < added.length) throw new RequestError("Two documents have the same id; give each its own id");
    const texts = added.flatMap((document) => document.passages.map((passage) => searchText(document, passage)));
    await this.#inTurn(async () => {
      this.#requireRoom(texts.length, ids);
      const vectors: Float32Array[] = [];
      for (let start = 0; start < texts.length; start += BATCH) {
        signal?.throwIfAborted();
        const batch = texts.slice(start, start + BATCH);
        const embedded = await this.embedder.embed(batch, "passage", signal);
        if (embedded.length !== batch.length)
          throw new RequestError(`The embedder returned ${embedded.length} vectors for ${batch.length} passages`);
        vectors.push(...embedded.map((vector) => this.#collection.vectors.unit(vector)));
        onProgress?.(vectors.length, texts.length);
      }
      for (const document of added) {
        this.#remove(document.id);
        this.#collection.add(document, vectors.splice(0, document.passages.length));
      }
    });
  }

  /** Remove a document. False if there is none with this id. */
  async delete(id: string): Promise<boolean> {
    return this.#inTurn(() => Promise.resolve(this.#remove(id)));
  }

  /**
   * The passages that fit the question best, the best first. Throws RequestError, DeviceError (from the embedder), or
   * the signal's reason.
   */
  async search(query: string, options: SearchOptions = {}): Promise<Hit[]> {
    const { count = 5, mode = "hybrid", signal } = readParams(options, SEARCH_CHECKS) as SearchOptions;
    if (query.trim() === "") throw new RequestError("The query is empty; pass a text", { param: "query" });
    return this.#inTurn(async () => {
      signal?.throwIfAborted();
      if (this.size === 0) return [];
      const ranked = mode === "hybrid" ? Math.max(FUSED, count) : count;
      const words = mode === "vectors" ? [] : this.#collection.words.search(query, ranked);
      if (mode === "words") return words.map((found) => this.#hit(found, null));
      const [vector] = await this.embedder.embed([query], "query", signal);
      if (vector === undefined) throw new RequestError("The embedder returned no vector for the query");
      const near = await this.#nearest(this.#collection.vectors.unit(vector), ranked);
      const similarity = new Map(near.map(({ slot, score }) => [slot, score]));
      const found = mode === "vectors" ? near : fuse([near, words], count);
      return found.map((each) => this.#hit(each, similarity.get(each.slot) ?? null));
    });
  }

  /**
   * Save the index in this origin's file system: completely, or not at all. Throws StorageError if there is no room, or
   * if another tab or worker has saved the index since this one was opened.
   */
  async save(): Promise<void> {
    await this.#inTurn(async () => {
      if (this.store === null)
        throw new RequestError("The index was opened with store: false, so it cannot be saved; open it with a store");
      const kept = this.#keptSegments();
      const isKept = new Set(kept.flatMap(({ documents }) => documents));
      const ids = this.#collection.documents.map(({ id }) => id).filter((id) => !isKept.has(id));
      const added = this.#collection.segment(ids);
      const version = this.#saved?.version ?? null;
      this.#setSaved(await this.store.write(this.name, this.kind, version, kept, added));
    });
  }

  /** Free the GPU's memory. */
  close(): void {
    void this.#gpu?.then((gpu) => gpu?.destroy());
    this.#gpu = null;
  }

  async #load(store: IndexStore, saved: SavedIndex): Promise<void> {
    for (const entry of saved.segments) {
      const segment = await store.readSegment(this.name, entry);
      this.#collection.addSegment(segment, new Set(entry.documents));
    }
    this.#setSaved(saved);
  }

  #setSaved(saved: SavedIndex): void {
    this.#saved = saved;
    this.#segments = new Map(
      saved.segments.flatMap(({ file, documents }) => documents.map((id) => [id, file] as const)),
    );
  }

  /** The segments that the next save leaves as they are: not those of which most was removed, and not too many. */
  #keptSegments(): SegmentEntry[] {
    const segments = this.#saved?.segments ?? [];
    if (segments.length >= MAX_SEGMENTS) return [];
    return segments.flatMap((segment) => {
      const documents = segment.documents.filter((id) => this.#segments.get(id) === segment.file);
      return documents.length * 2 >= segment.documents.length ? [{ ...segment, documents }] : [];
    });
  }

  #remove(id: string): boolean {
    if (!this.#collection.remove(id)) return false;
    this.#segments.delete(id);
    const { slots, size } = this.#collection.vectors;
    if (slots - size > size + COMPACTED_FROM) {
      this.#collection = this.#collection.compacted();
      this.close();
    }
    return true;
  }

  #requireRoom(added: number, replaced: ReadonlySet<string>): void {
    let passages = this.size + added;
    for (const id of replaced) passages -= this.#collection.get(id)?.passages.length ?? 0;
    if (passages > MAX_VECTORS)
      throw new RequestError(
        `The index would have ${passages} passages; it holds at most ${MAX_VECTORS}: use several indexes`,
        { passages, limit: MAX_VECTORS },
      );
  }

  async #nearest(query: Float32Array, count: number): Promise<Ranked[]> {
    const { vectors } = this.#collection;
    const gpu = await this.#gpuVectors();
    if (gpu === null) return vectors.search(query, count);
    try {
      return await gpu.search(query, count);
    } catch (error) {
      // A GPU that fails is tried again with the next search, and this one runs without it.
      this.close();
      if (this.options.device === "gpu") throw error;
      return vectors.search(query, count);
    }
  }

  async #gpuVectors(): Promise<GpuVectors | null> {
    const { device = "auto", gpu = browserGpu() } = this.options;
    if (device === "cpu" || (device === "auto" && this.size < GPU_FROM)) return null;
    const isRequired = device === "gpu";
    this.#gpu ??= GpuVectors.open(this.#collection.vectors, gpu, isRequired);
    const opened = await this.#gpu;
    if (opened === null && isRequired)
      throw new DeviceError('There is no WebGPU device for the search; open the index with device: "auto"');
    return opened;
  }

  #hit({ slot, score }: Ranked, similarity: number | null): Hit {
    const { document, index } = this.#collection.passageOf(slot);
    const { start = 0, end = 0, headings = [] } = document.passages[index] ?? {};
    const passage = { text: document.text.slice(start, end), start, end, headings };
    return { document: document.id, title: document.title, passage, score, similarity };
  }

  /** Changes and searches run one after the other. */
  #inTurn<T>(task: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(task);
    this.#last = turn.catch(() => undefined);
    return turn;
  }
}

function browserGpu(): GPU | undefined {
  return typeof navigator !== "undefined" && "gpu" in navigator ? navigator.gpu : undefined;
}

/** Throws RequestError if a saved index has vectors of another model or type. */
function requireKind(name: string, saved: IndexKind, embedder: Embedder, type: VectorType | undefined): void {
  if (saved.model !== embedder.model || saved.dimensions !== embedder.dimensions)
    throw new RequestError(
      `The index '${name}' has vectors of another embedding model; open it with that model, or delete it and add the ` +
        "documents again",
      { index: name, found: saved.model, expected: embedder.model },
    );
  if (type !== undefined && type !== saved.type)
    throw new RequestError(`The index '${name}' has vectors in ${saved.type}, not ${type}; open it without a type`, {
      param: "type",
    });
}
