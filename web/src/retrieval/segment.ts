// A segment of a saved index: documents as JSON, then the scales and the rows of their vectors.

import type { Bytes } from "../runtime/source.js";
import type { IndexedDocument } from "./indexed_document.js";

/** The vectors of all passages, in the order of ``documents``. */
export interface Segment {
  readonly documents: readonly IndexedDocument[];
  readonly rows: Bytes;
  /** Float32. */
  readonly scales: Bytes;
}

const HEADER_BYTES = 12;

export function packSegment({ documents, rows, scales }: Segment): Bytes {
  const json = new TextEncoder().encode(JSON.stringify(documents));
  const bytes = new Uint8Array(HEADER_BYTES + json.length + scales.length + rows.length);
  new Uint32Array(bytes.buffer, 0, 3).set([json.length, scales.length, rows.length]);
  bytes.set(json, HEADER_BYTES);
  bytes.set(scales, HEADER_BYTES + json.length);
  bytes.set(rows, HEADER_BYTES + json.length + scales.length);
  return bytes;
}

/** Throws Error for bytes of another length than their header says. */
export function unpackSegment(bytes: Bytes): Segment {
  if (bytes.length < HEADER_BYTES) throw new Error(`a segment has ${bytes.length} bytes`);
  const [json = 0, scales = 0, rows = 0] = new Uint32Array(bytes.slice(0, HEADER_BYTES).buffer);
  if (bytes.length !== HEADER_BYTES + json + scales + rows) throw new Error("a segment has the wrong size");
  const scalesAt = HEADER_BYTES + json;
  return {
    documents: JSON.parse(new TextDecoder().decode(bytes.subarray(HEADER_BYTES, scalesAt))) as IndexedDocument[],
    scales: bytes.subarray(scalesAt, scalesAt + scales),
    rows: bytes.subarray(scalesAt + scales),
  };
}
