// The documents of an index in memory: their texts, and the slot of each passage in the vectors and in the index of
// words.

import type { IndexedDocument } from "./indexed_document.js";
import { searchText } from "./indexed_document.js";
import type { Segment } from "./segment.js";
import type { VectorType } from "./vectors.js";
import { Vectors } from "./vectors.js";
import { WordIndex } from "./word_index.js";

interface Entry {
  readonly document: IndexedDocument;
  /** Its passages have this slot and the following ones. */
  readonly firstSlot: number;
}

interface PassageOfSlot {
  readonly document: IndexedDocument;
  readonly index: number;
}

export class Collection {
  readonly #entries = new Map<string, Entry>();
  readonly #passages: PassageOfSlot[] = [];
  readonly words = new WordIndex();
  readonly vectors: Vectors;

  constructor(type: VectorType, dimensions: number) {
    this.vectors = new Vectors(type, dimensions);
  }

  get documents(): readonly IndexedDocument[] {
    return Array.from(this.#entries.values(), ({ document }) => document);
  }

  get(id: string): IndexedDocument | null {
    return this.#entries.get(id)?.document ?? null;
  }

  passageOf(slot: number): PassageOfSlot {
    const passage = this.#passages[slot];
    if (passage === undefined) throw new Error(`slot ${slot} was never used`);
    return passage;
  }

  /** Add a document with a vector for each passage. */
  add(document: IndexedDocument, vectors: readonly Float32Array[]): void {
    this.#enter(document);
    for (const vector of vectors) this.vectors.add(vector);
  }

  /** False if there is no document with this id. */
  remove(id: string): boolean {
    const entry = this.#entries.get(id);
    if (entry === undefined) return false;
    const { document, firstSlot } = entry;
    for (const [index, passage] of document.passages.entries()) {
      this.vectors.remove(firstSlot + index);
      this.words.remove(firstSlot + index, searchText(document, passage));
    }
    this.#entries.delete(id);
    return true;
  }

  /** Some of the documents, with their vectors. */
  segment(ids: Iterable<string>): Segment {
    const entries = Array.from(ids, (id) => this.#entries.get(id)).filter((entry) => entry !== undefined);
    const parts = entries.map(({ document, firstSlot }) => this.vectors.bytesOf(firstSlot, document.passages.length));
    return {
      documents: entries.map(({ document }) => document),
      rows: concatenated(parts.map(({ rows }) => rows)),
      scales: concatenated(parts.map(({ scales }) => scales)),
    };
  }

  /** Add the documents of a segment whose ids are in ``ids``. */
  addSegment({ documents, rows, scales }: Segment, ids: ReadonlySet<string>): void {
    const rowBytes = this.vectors.words * 4;
    let passage = 0;
    for (const document of documents) {
      const end = passage + document.passages.length;
      if (ids.has(document.id)) {
        this.#enter(document);
        this.vectors.addBytes({
          rows: rows.subarray(passage * rowBytes, end * rowBytes),
          scales: scales.subarray(passage * 4, end * 4),
        });
      }
      passage = end;
    }
  }

  /** The same documents without removed slots. */
  compacted(): Collection {
    const other = new Collection(this.vectors.type, this.vectors.dimensions);
    const ids = new Set(this.#entries.keys());
    other.addSegment(this.segment(ids), ids);
    return other;
  }

  #enter(document: IndexedDocument): void {
    this.#entries.set(document.id, { document, firstSlot: this.vectors.slots });
    for (const [index, passage] of document.passages.entries()) {
      this.#passages.push({ document, index });
      this.words.add(searchText(document, passage));
    }
  }
}

function concatenated(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let offset = 0;
  for (const part of parts) {
    all.set(part, offset);
    offset += part.length;
  }
  return all;
}
