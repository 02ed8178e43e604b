// Resizes a picture of bytes with torchvision's integer arithmetic, bit for bit: Pillow's algorithm with 16-bit weights.
// A pass along the rows, rounded to bytes, is followed by one along the columns. A filter is as wide as the picture
// shrinks, which is antialiasing. `compiler/runtime/images/resize.py` computes the same.

import type { ImageSpec } from "../runtime/manifest.js";
import type { Size } from "../shared/images/layout.js";

/** A picture, three bytes for each pixel: red, green and blue, row by row. */
export interface Pixels extends Size {
  readonly data: Uint8Array | Uint8ClampedArray;
}

type Filter = ImageSpec["filter"];

/** The weights of each result for the ``counts`` pixels from ``first`` on, ``taps`` apart, times 2^``bits``. */
interface Weights {
  readonly first: Int32Array;
  readonly counts: Int32Array;
  readonly values: Int32Array;
  readonly taps: number;
  readonly bits: number;
}

const sinc = (x: number): number => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** The filter of a distance of at least 0, and the distance from which on it is 0. */
const FILTERS: Readonly<Record<Filter, readonly [(x: number) => number, number]>> = {
  bilinear: [(x) => (x < 1 ? 1 - x : 0), 1],
  bicubic: [(x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? -0.5 * (((x - 5) * x + 8) * x - 4) : 0), 2],
  lanczos: [(x) => (x < 3 ? sinc(x) * sinc(x / 3) : 0), 3],
};

export function resizeU8(picture: Pixels, { width, height }: Size, filter: Filter): Pixels {
  const wide = picture.width === width ? picture : alongRows(picture, width, filter);
  return wide.height === height ? wide : alongColumns(wide, height, filter);
}

function alongRows({ width, height, data }: Pixels, length: number, filter: Filter): Pixels {
  const { first, counts, values, taps, bits } = integerWeights(width, length, filter);
  const half = 1 << (bits - 1);
  // It clamps what is written.
  const result = new Uint8ClampedArray(length * height * 3);
  let to = 0;
  for (let row = 0; row < height; row++)
    for (let column = 0; column < length; column++) {
      let at = (row * width + Number(first[column])) * 3;
      const from = column * taps;
      const end = from + Number(counts[column]);
      // Doubles hold these integers exactly, and are faster here than 32-bit sums.
      let [red, green, blue] = [half, half, half];
      for (let tap = from; tap < end; tap++, at += 3) {
        const weight = Number(values[tap]);
        red += weight * Number(data[at]);
        green += weight * Number(data[at + 1]);
        blue += weight * Number(data[at + 2]);
      }
      result[to++] = red >> bits;
      result[to++] = green >> bits;
      result[to++] = blue >> bits;
    }
  return { width: length, height, data: result };
}

function alongColumns({ width, height, data }: Pixels, length: number, filter: Filter): Pixels {
  const { first, counts, values, taps, bits } = integerWeights(height, length, filter);
  const half = 1 << (bits - 1);
  const bytes = width * 3;
  const result = new Uint8ClampedArray(bytes * length);
  const sums = new Int32Array(bytes);
  for (let row = 0; row < length; row++) {
    sums.fill(half);
    for (let tap = 0; tap < Number(counts[row]); tap++) {
      const weight = Number(values[row * taps + tap]);
      const from = (Number(first[row]) + tap) * bytes;
      for (let at = 0; at < bytes; at++) sums[at] = Number(sums[at]) + weight * Number(data[from + at]);
    }
    for (let at = 0; at < bytes; at++) result[row * bytes + at] = Number(sums[at]) >> bits;
  }
  return { width, height: length, data: result };
}

function integerWeights(before: number, after: number, filter: Filter): Weights {
  const [valueAt, reach] = FILTERS[filter];
  const scale = before / after;
  const wide = Math.max(scale, 1);
  const [first, counts] = [new Int32Array(after), new Int32Array(after)];
  for (let index = 0; index < after; index++) {
    const center = (index + 0.5) * scale;
    const start = Math.max(Math.trunc(center - reach * wide + 0.5), 0);
    first[index] = start;
    counts[index] = Math.min(Math.trunc(center + reach * wide + 0.5), before) - start;
  }
  const taps = counts.reduce((most, count) => Math.max(most, count), 0);
  const exact = new Float64Array(after * taps);
  let largest = 0;
  for (let index = 0; index < after; index++) {
    const start = Number(first[index]) - (index + 0.5) * scale;
    const count = Number(counts[index]);
    const values = exact.subarray(index * taps, index * taps + count);
    let total = 0;
    for (let tap = 0; tap < count; tap++) {
      const value = valueAt(Math.abs((tap + start + 0.5) * (1 / wide)));
      values[tap] = value;
      total += value;
    }
    for (let tap = 0; tap < count; tap++) {
      const value = Number(values[tap]) / total;
      values[tap] = value;
      largest = Math.max(largest, value);
    }
  }
  let bits = 0;
  while (bits < 22 && Math.trunc(0.5 + largest * 2 ** (bits + 1)) < 2 ** 15) bits++;
  const values = Int32Array.from(exact, (value) => Math.trunc(value * 2 ** bits + (value < 0 ? -0.5 : 0.5)));
  return { first, counts, values, taps, bits };
}
