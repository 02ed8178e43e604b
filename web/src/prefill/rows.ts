// Rows of keys and values, as computed and as integers of 8 or 4 bits, and numbers of 16 bits. The same as
// compiler/ir/ops/kv_pages.py, whose docstrings define them; tests/conformance/kv_rows.json has results of both.

/** Codes of ``bits`` bits from -``steps`` to ``largest``; ``zero`` is the stored value of code 0. */
export interface KvForm {
  readonly bits: 4 | 8;
  readonly steps: number;
  readonly largest: number;
  readonly zero: number;
  readonly rotatesKeys: boolean;
}

export const Q8: KvForm = { bits: 8, steps: 127, largest: 127, zero: 0, rotatesKeys: false };
/** Also the form of pages that travel. */
export const Q4: KvForm = { bits: 4, steps: 8, largest: 7, zero: 8, rotatesKeys: true };

/** Codes, row after row, and the scale of each row. */
export interface Rows {
  readonly codes: Int8Array;
  readonly scales: Float32Array;
}

/** The 32-bit words of the codes of a row. */
export function codeWords(form: KvForm, headDim: number): number {
  return (headDim * form.bits) / 32;
}

/** The words of ``rows`` rows with their scales. */
export function blockWords(form: KvForm, headDim: number, rows: number): number {
  return rows * (codeWords(form, headDim) + 1);
}

/**
 * Multiply rows of ``headDim`` numbers by the orthonormal Hadamard matrix, in place, in blocks of the largest power of
 * two that divides it. It is its own inverse.
 */
export function rotate(values: Float32Array, headDim: number): void {
  const size = headDim & -headDim;
  for (let step = 1; step < size; step *= 2) {
    for (let start = 0; start < values.length; start += 2 * step) {
      for (let low = start; low < start + step; low++) {
        const [a = 0, b = 0] = [values[low], values[low + step]];
        values[low] = a + b;
        values[low + step] = a - b;
      }
    }
  }
  const factor = Math.fround(size ** -0.5);
  for (let index = 0; index < values.length; index++) values[index] = (values[index] ?? 0) * factor;
}

/** Rows of numbers as codes -``steps`` to ``largest``, and the scale of each. */
export function codesOf(values: Float32Array, form: KvForm, headDim: number): Rows {
  const codes = new Int8Array(values.length);
  const scales = new Float32Array(values.length / headDim);
  for (let row = 0; row < scales.length; row++) {
    const start = row * headDim;
    let [highest, lowest] = [-Infinity, Infinity];
    for (let index = start; index < start + headDim; index++) {
      const value = values[index] ?? 0;
      if (value > highest) highest = value;
      if (value < lowest) lowest = value;
    }
    const extreme = highest >= -lowest ? highest : lowest;
    const factor = extreme === 0 ? 0 : Math.fround(-form.steps / extreme);
    scales[row] = extreme / -form.steps;
    for (let index = start; index < start + headDim; index++)
      codes[index] = Math.min(form.largest, roundedToEven(Math.fround((values[index] ?? 0) * factor)));
  }
  return { codes, scales };
}

/** A block of rows: the codes of all, then their scales. ``words`` are filled from ``start`` on. */
export function packRows(values: Float32Array, form: KvForm, headDim: number, words: Uint32Array, start: number): void {
  const { codes, scales } = codesOf(values, form, headDim);
  const vectors = 8 / form.bits;
  const perWord = 4 * vectors;
  const codeCount = codes.length / perWord;
  for (let word = 0; word < codeCount; word++) {
    let packed = 0;
    for (let element = 0; element < perWord; element++) {
      const code = ((codes[word * perWord + element] ?? 0) + form.zero) & ((1 << form.bits) - 1);
      packed |= code << (8 * (element % 4) + form.bits * Math.floor(element / 4));
    }
    words[start + word] = packed >>> 0;
  }
  words.set(new Uint32Array(scales.buffer), start + codeCount);
}

/** The codes and scales of a block of rows. */
export function unpackRows(words: Uint32Array, start: number, form: KvForm, headDim: number, rows: number): Rows {
  const codes = new Int8Array(rows * headDim);
  const vectors = 8 / form.bits;
  const perWord = 4 * vectors;
  const codeCount = codes.length / perWord;
  const mask = (1 << form.bits) - 1;
  for (let word = 0; word < codeCount; word++) {
    const packed = words[start + word] ?? 0;
    for (let element = 0; element < perWord; element++)
      codes[word * perWord + element] =
        ((packed >>> (8 * (element % 4) + form.bits * Math.floor(element / 4))) & mask) - form.zero;
  }
  const scales = new Float32Array(words.slice(start + codeCount, start + codeCount + rows).buffer);
  return { codes, scales };
}

export function numbersOf({ codes, scales }: Rows, headDim: number): Float32Array {
  return Float32Array.from(codes, (code, index) => code * (scales[Math.floor(index / headDim)] ?? 0));
}

/** To the nearest integer, of two the even one. */
function roundedToEven(value: number): number {
  const rounded = Math.round(value);
  return Math.abs(value % 1) === 0.5 && rounded % 2 !== 0 ? rounded - 1 : rounded;
}

/** Numbers as float16: the nearest, of two the even one. */
export function toHalves(values: Float32Array, halves: Uint16Array): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let index = 0; index < bits.length; index++) {
    const value = bits[index] ?? 0;
    const sign = (value >>> 16) & 0x8000;
    const magnitude = value & 0x7fffffff;
    let half: number;
    // Infinity, which is also what 65520 and above round to; what is not a number stays so.
    if (magnitude >= 0x477ff000) half = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    else if (magnitude >= 0x38800000) {
      const odd = (magnitude >>> 13) & 1;
      half = (magnitude - 0x38000000 + 0xfff + odd) >>> 13;
    } else {
      // Multiples of 2^-24; this addition rounds to them.
      const scaled = Math.abs(values[index] ?? 0) * 2 ** 24;
      half = roundedToEven(scaled);
    }
    halves[index] = sign | half;
  }
}

export function fromHalves(halves: Uint16Array): Float32Array {
  return Float32Array.from(halves, (half) => {
    const exponent = (half >>> 10) & 31;
    const fraction = half & 0x3ff;
    const sign = half >>> 15 === 1 ? -1 : 1;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
}
