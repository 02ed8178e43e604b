// Vectors of length 1 in float16 or int8, row after row, and their exact search in plain typed arrays.

import { RequestError } from "../errors.js";
import type { Bytes } from "../runtime/source.js";
import type { Ranked } from "./ranks.js";
import { best } from "./ranks.js";

export const VECTOR_TYPES = ["float16", "int8"] as const;
export type VectorType = (typeof VECTOR_TYPES)[number];

/** The most vectors that an index holds: what exact search is meant and measured for. */
export const MAX_VECTORS = 100_000;

const LEAST_CAPACITY = 1024;

export class Vectors {
  /** The rows as 32-bit words, ``words`` for each slot. */
  #rows: Uint32Array<ArrayBuffer>;
  /** The factor of each row; negative if the row was removed. */
  #scales: Float32Array<ArrayBuffer>;
  #slots = 0;
  #removed = 0;
  /** The 32-bit words of a row. */
  readonly words: number;

  constructor(
    readonly type: VectorType,
    readonly dimensions: number,
  ) {
    this.words = Math.ceil(dimensions / (type === "float16" ? 2 : 4));
    this.#rows = new Uint32Array(0);
    this.#scales = new Float32Array(0);
  }

  /** The number of slots, including removed ones. */
  get slots(): number {
    return this.#slots;
  }

  /** The number of vectors. */
  get size(): number {
    return this.#slots - this.#removed;
  }

  get rows(): Uint32Array<ArrayBuffer> {
    return this.#rows.subarray(0, this.#slots * this.words);
  }

  get scales(): Float32Array<ArrayBuffer> {
    return this.#scales.subarray(0, this.#slots);
  }

  /** Add a vector under the next slot, scaled to length 1. Throws RequestError if it is not a direction. */
  add(vector: Float32Array): void {
    const unit = this.unit(vector);
    const slot = this.#grow(1);
    if (this.type === "float16") {
      toFloat16(unit, new Uint16Array(this.#rows.buffer, slot * this.words * 4, this.dimensions));
      this.#scales[slot] = 1;
      return;
    }
    const largest = unit.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const row = new Int8Array(this.#rows.buffer, slot * this.words * 4, this.dimensions);
    for (let index = 0; index < row.length; index++) row[index] = Math.round((127 * (unit[index] ?? 0)) / largest);
    this.#scales[slot] = largest;
  }

  /** Scale a vector to length 1. Throws RequestError for another size, for zeros, and for values without a number. */
  unit(vector: Float32Array): Float32Array {
    if (vector.length !== this.dimensions)
      throw new RequestError(
        `The vector has ${vector.length} dimensions, the index has ${this.dimensions}; use the model of the index`,
        { found: vector.length, expected: this.dimensions },
      );
    let sum = 0;
    for (const value of vector) sum += value * value;
    const length = Math.sqrt(sum);
    if (!(length > 0 && length < Infinity))
      throw new RequestError(`A vector of length ${length} has no direction; the embedding model has failed`);
    return vector.map((value) => value / length);
  }

  remove(slot: number): void {
    const scale = this.#scales[slot] ?? -1;
    if (scale < 0) return;
    this.#scales[slot] = -scale;
    this.#removed++;
  }

  /** The bytes of ``count`` rows from ``slot`` on, and their scales. */
  bytesOf(slot: number, count: number): { readonly rows: Bytes; readonly scales: Bytes } {
    const rows = this.#rows.slice(slot * this.words, (slot + count) * this.words);
    const scales = this.#scales.slice(slot, slot + count);
    return { rows: new Uint8Array(rows.buffer), scales: new Uint8Array(scales.buffer) };
  }

  /** Add rows that ``bytesOf`` returned. */
  addBytes({ rows, scales }: { readonly rows: Bytes; readonly scales: Bytes }): void {
    const slot = this.#grow(scales.length / 4);
    new Uint8Array(this.#rows.buffer).set(rows, slot * this.words * 4);
    new Uint8Array(this.#scales.buffer).set(scales, slot * 4);
  }

  /** The ``count`` vectors with the largest cosines with ``query``, which has length 1. */
  search(query: Float32Array, count: number): Ranked[] {
    return best(this.type === "float16" ? this.#float16Scores(query) : this.#int8Scores(query), count);
  }

  *#float16Scores(query: Float32Array): Generator<[number, number], void, undefined> {
    const halves = new Uint16Array(this.#rows.buffer);
    const value = fromFloat16();
    const { dimensions } = this;
    for (let slot = 0, start = 0; slot < this.#slots; slot++, start += this.words * 2) {
      if ((this.#scales[slot] ?? -1) < 0) continue;
      let sum = 0;
      for (let index = 0; index < dimensions; index++)
        sum += (query[index] ?? 0) * (value[halves[start + index] ?? 0] ?? 0);
      yield [slot, sum];
    }
  }

  *#int8Scores(query: Float32Array): Generator<[number, number], void, undefined> {
    const codes = new Int8Array(this.#rows.buffer);
    const { dimensions } = this;
    for (let slot = 0, start = 0; slot < this.#slots; slot++, start += this.words * 4) {
      const scale = this.#scales[slot] ?? -1;
      if (scale < 0) continue;
      let sum = 0;
      for (let index = 0; index < dimensions; index++) sum += (query[index] ?? 0) * (codes[start + index] ?? 0);
      yield [slot, (sum * scale) / 127];
    }
  }

  /** Make room for ``count`` slots, and return the first. */
  #grow(count: number): number {
    const slot = this.#slots;
    const slots = slot + count;
    if (slots > this.#scales.length) {
      const capacity = Math.max(LEAST_CAPACITY, slots, 2 * this.#scales.length);
      const rows = new Uint32Array(capacity * this.words);
      const scales = new Float32Array(capacity);
      rows.set(this.#rows);
      scales.set(this.#scales);
      this.#rows = rows;
      this.#scales = scales;
    }
    this.#slots = slots;
    return slot;
  }
}

// Conversions between float32 and float16 (IEEE 754 binary16). Float16Array is too new to rely on.

/** Round to the nearest float16, to the even one of two. The values are at most 1 in magnitude. */
export function toFloat16(values: Float32Array, halves: Uint16Array): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (const [index, float] of bits.entries()) {
    const sign = (float >>> 16) & 0x8000;
    const exponent = ((float >>> 23) & 0xff) - 112;
    const mantissa = (float & 0x7fffff) | 0x800000;
    // Below 2^-14 the step between two halves no longer shrinks.
    const shift = exponent > 0 ? 13 : 14 - exponent;
    if (shift > 24) {
      halves[index] = sign;
      continue;
    }
    const kept = mantissa >>> shift;
    const rest = mantissa & ((1 << shift) - 1);
    const middle = 1 << (shift - 1);
    const rounded = kept + (rest > middle || (rest === middle && (kept & 1) === 1) ? 1 : 0);
    // A normal mantissa's leading bit adds one to the exponent, and a carry adds another one.
    halves[index] = sign | (exponent > 0 ? ((exponent - 1) << 10) + rounded : rounded);
  }
}

let table: Float32Array | null = null;

/** The value of each of the 65,536 float16 numbers. */
export function fromFloat16(): Float32Array {
  table ??= Float32Array.from({ length: 1 << 16 }, (_, half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >>> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
  return table;
}
