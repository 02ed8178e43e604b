// Pages of keys and values, each of which holds an entire sequence. They store the results of a step, and provide the
// graph's inputs for the past.
//
// A page grows with its sequence, so the memory depends on the length of the conversation. It has an array (1, kv
// heads, capacity, head_dim) for each input of the graph.

import { RequestError } from "../errors.js";
import type { OnnxRuntime, OnnxTensor, TensorType } from "./options.js";

/** One layer's keys, or its values. ``past`` is the graph's input, ``present`` its output. */
export interface Plane {
  readonly past: string;
  readonly present: string;
}

export interface PageShape {
  readonly heads: number;
  readonly headDim: number;
  readonly dtype: Exclude<TensorType, "int64">;
  /** The maximum number of tokens in a page. */
  readonly context: number;
}

type Elements = Float32Array<ArrayBuffer> | Uint16Array<ArrayBuffer>;

interface Page {
  readonly capacity: number;
  readonly arrays: readonly Elements[];
  readonly tensors: readonly OnnxTensor[];
  /** The number of computed positions. */
  filled: number;
}

/** The number of tokens by which a page is larger than its sequence at first, and by which it grows at least. */
const GROWTH_TOKENS = 64;
const GROWTH = 1 / 8;
/** The header of a saved page: the number of its tokens. */
const HEADER_BYTES = 4;

export class SequencePages {
  readonly #pages: (Page | null)[];

  constructor(
    private readonly ort: Pick<OnnxRuntime, "Tensor">,
    private readonly planes: readonly Plane[],
    private readonly shape: PageShape,
    pages: number,
  ) {
    this.#pages = new Array<null>(pages).fill(null);
  }

  /** Allocate space for the positions up to ``length`` of a page, and retain the first ``start`` positions. */
  reserve(number: number, start: number, length: number): void {
    const page = this.#find(number);
    if (page !== null && start > 0 && page.capacity >= length) return;
    // A sequence that starts again releases the old memory.
    const capacity =
      start === 0 ? length + GROWTH_TOKENS : length + Math.max(GROWTH_TOKENS, Math.ceil(length * GROWTH));
    this.#pages[number] = this.#resized(
      page,
      Math.min(start, page?.filled ?? 0),
      Math.min(capacity, this.shape.context),
    );
  }

  /** The graph's inputs: complete pages, of which the graph reads the length of the attention mask. */
  pasts(number: number): Record<string, OnnxTensor> {
    return this.#tensorsOf(number, ({ past }) => past);
  }

  /** The same memory as the graph's outputs, so that the graph writes new rows directly to their positions. */
  presents(number: number): Record<string, OnnxTensor> {
    return this.#tensorsOf(number, ({ present }) => present);
  }

  /** Store the new rows of positions from ``start`` on: (1, kv heads, ``count``, head_dim) for each plane. */
  append(number: number, start: number, count: number, rowsOf: (plane: Plane) => OnnxTensor): void {
    const page = this.#filledPage(number);
    this.planes.forEach((plane, index) => {
      copyRows(
        bitsOf(rowsOf(plane).data, page.arrays[index]),
        count,
        0,
        page.arrays[index],
        page.capacity,
        start,
        count,
        this.shape,
      );
    });
  }

  /** Record that ``length`` positions are computed. */
  setFilled(number: number, length: number): void {
    this.#filledPage(number).filled = length;
  }

  copy(from: number, to: number): void {
    const page = this.#find(from);
    this.#find(to);
    this.#pages[to] = page === null ? null : this.#resized(page, page.filled, page.filled);
  }

  read(numbers: readonly number[]): Uint8Array<ArrayBuffer> {
    const parts = numbers.flatMap((number) => {
      const page = this.#find(number);
      const filled = page?.filled ?? 0;
      const arrays = page === null ? [] : this.#resized(page, filled, filled).arrays;
      return [new Uint8Array(Uint32Array.of(filled).buffer), ...arrays.map(({ buffer }) => new Uint8Array(buffer))];
    });
    const bytes = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
    parts.reduce((offset, part) => (bytes.set(part, offset), offset + part.length), 0);
    return bytes;
  }

  /** Returns a function that writes the bytes of `read` to these pages. Throws RequestError for other bytes. */
  write(numbers: readonly number[], bytes: Uint8Array<ArrayBuffer>): () => void {
    const written = new Map<number, Page>();
    let offset = 0;
    const wrong = (): RequestError =>
      new RequestError(
        `${bytes.length} bytes are not the keys and values of ${numbers.length} pages of this model; ` +
          "read them from the same bundle",
        {
          found: bytes.length,
        },
      );
    for (const number of numbers) {
      this.#find(number);
      if (offset + HEADER_BYTES > bytes.length) throw wrong();
      const filled = new DataView(bytes.buffer, bytes.byteOffset + offset).getUint32(0, true);
      if (filled > this.shape.context) throw wrong();
      const page = this.#resized(null, 0, filled);
      offset += HEADER_BYTES;
      for (const array of page.arrays) {
        if (offset + array.byteLength > bytes.length) throw wrong();
        new Uint8Array(array.buffer).set(bytes.subarray(offset, offset + array.byteLength));
        offset += array.byteLength;
      }
      page.filled = filled;
      written.set(number, page);
    }
    if (offset !== bytes.length) throw wrong();
    return () => {
      for (const [number, page] of written) this.#pages[number] = page;
    };
  }

  /** Release all memory. */
  clear(): void {
    this.#pages.fill(null);
  }

  #find(number: number): Page | null {
    const page = this.#pages[number];
    if (page === undefined)
      throw new RequestError(`Page ${number} is not in the pool; its pages are 0 to ${this.#pages.length - 1}`, {
        page: number,
      });
    return page;
  }

  #filledPage(number: number): Page {
    const page = this.#find(number);
    if (page === null) throw new Error(`page ${number} was not reserved`);
    return page;
  }

  #tensorsOf(number: number, nameOf: (plane: Plane) => string): Record<string, OnnxTensor> {
    const { tensors } = this.#filledPage(number);
    return Object.fromEntries(
      this.planes.flatMap((plane, index) => (tensors[index] === undefined ? [] : [[nameOf(plane), tensors[index]]])),
    );
  }

  /** A page of this capacity with the first ``kept`` positions of another. */
  #resized(page: Page | null, kept: number, capacity: number): Page {
    const { heads, headDim, dtype } = this.shape;
    const Elements = dtype === "float32" ? Float32Array : Uint16Array;
    const arrays = this.planes.map(() => new Elements(heads * capacity * headDim));
    arrays.forEach((array, index) => {
      if (page !== null) copyRows(page.arrays[index], page.capacity, 0, array, capacity, 0, kept, this.shape);
    });
    const tensors = arrays.map((array) => new this.ort.Tensor(dtype, array, [1, heads, capacity, headDim]));
    return { capacity, arrays, tensors, filled: kept };
  }
}

/** ``count`` positions of every head, from one array (heads, capacity, head_dim) to another. */
function copyRows(
  from: Elements | undefined,
  fromCapacity: number,
  fromStart: number,
  to: Elements | undefined,
  toCapacity: number,
  toStart: number,
  count: number,
  { heads, headDim }: PageShape,
): void {
  for (let head = 0; head < heads; head++) {
    const source = (head * fromCapacity + fromStart) * headDim;
    to?.set(from?.subarray(source, source + count * headDim) ?? [], (head * toCapacity + toStart) * headDim);
  }
}

/** The elements of a result in the array type of the page: if JavaScript has Float16Array, results have that type. */
function bitsOf(data: unknown, like: Elements | undefined): Elements {
  if (like instanceof Float32Array) return data as Float32Array<ArrayBuffer>;
  const { buffer, byteOffset, byteLength } = data as Uint16Array<ArrayBuffer>;
  return new Uint16Array(buffer, byteOffset, byteLength / 2);
}
