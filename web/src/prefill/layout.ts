// The pages and states of a model, as its device stores them and as they travel: see
// server_fallback/far_prefill/layout.py, which has the server's part.

import { RequestError } from "../errors.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { isExport } from "../runtime/any_manifest.js";
import type { BufferEntry } from "../runtime/manifest.js";
import { sizeBytes } from "../runtime/memory.js";
import { PAGE_DIMS, STATE_DIM } from "../runtime/page_groups.js";
import { planOf } from "../runtime/plan.js";
import type { Bytes } from "../runtime/source.js";
import type { ActivationDtype } from "../runtime/variants.js";
import type { KvForm, Rows } from "./rows.js";
import { Q4, Q8, blockWords, codesOf, fromHalves, numbersOf, packRows, rotate, toHalves, unpackRows } from "./rows.js";

/** The keys and values of a layer. ``bytes`` are those of a page on the device, ``wireBytes`` those that travel. */
interface Layer {
  readonly name: string;
  readonly heads: number;
  readonly headDim: number;
  readonly bytes: number;
  readonly wireBytes: number;
}

/** The layers of a page group. ``window`` null: they see all tokens. */
interface Group {
  readonly window: number | null;
  readonly layers: readonly Layer[];
  readonly bytes: number;
  readonly wireBytes: number;
}

/** A state: ``headDim`` null is a convolution's window, which travels as float16, otherwise the size of a matrix's rows. */
interface State {
  readonly size: number;
  readonly headDim: number | null;
}

/** How states travel: as asked for, or as float32 if a number does not fit into float16. */
export type StatesForm = "q4" | "q8" | "float16";
export type StatesDtype = StatesForm | "float32";

/** The formats of pages on devices; null as computed. */
const FORMS: Readonly<Record<string, KvForm | null>> = { activation: null, q8: Q8, q4: Q4 };

/** What a server says about its model; compared with `KvLayout.description`. */
export interface Description {
  readonly page_size: number;
  readonly quantization: string;
  readonly groups: readonly { readonly window: number | null; readonly layers: readonly unknown[] }[];
  readonly states: readonly unknown[];
}

export class KvLayout {
  readonly pageSize: number;
  readonly groups: readonly Group[];
  /** The numbers of all states of a slot. */
  readonly stateSize: number;
  readonly description: Description;
  readonly #form: KvForm | null;
  readonly #stored: "float16" | "float32";
  readonly #states: readonly State[];

  /** ``windows``: by group. Throws RequestError for a model whose pages cannot be exchanged. */
  constructor(manifest: AnyManifest, activation: ActivationDtype, windows: readonly number[]) {
    if (isExport(manifest)) throw notExchanged("ONNX Runtime holds its keys and values");
    const { page_size: pageSize, kv, weights } = manifest;
    this.pageSize = pageSize;
    if (!Object.hasOwn(FORMS, kv)) throw notExchanged(`its pages are ${kv}`);
    this.#form = FORMS[kv] ?? null;
    this.#stored = activation === "float16" ? "float16" : "float32";
    const states = Object.entries(planOf(manifest).states);
    const form = this.#form;
    const layerOf = ([name, entry]: readonly [string, BufferEntry]): Layer => {
      const [heads = 0, , last = 0] = sizesOf(entry).slice(1);
      const headDim = form === null ? last : (last - 1) * (32 / form.bits);
      if (headDim % 8 > 0) throw notExchanged(`its heads have ${headDim} numbers, which is not a multiple of 8`);
      const bytes = sizeBytes(entry, activation, { [String(entry.shape[0])]: 1 });
      return { name, heads, headDim, bytes, wireBytes: 8 * heads * blockWords(Q4, headDim, pageSize) };
    };
    this.groups = windows.map((window, index) => {
      const layers = states.filter(([, { shape }]) => shape[0] === PAGE_DIMS[index]).map(layerOf);
      if (layers.length === 0) throw notExchanged("it has no layers with attention, by which they could be checked");
      const sum = (size: "bytes" | "wireBytes"): number => layers.reduce((all, layer) => all + layer[size], 0);
      return { window: window === Infinity ? null : window, layers, bytes: sum("bytes"), wireBytes: sum("wireBytes") };
    });
    const slots = states.filter(([, { shape }]) => shape[0] === STATE_DIM);
    this.#states = slots.map(([, entry]) => stateOf(sizesOf(entry)));
    this.stateSize = this.#states.reduce((sum, { size }) => sum + size, 0);
    const formats = new Set(
      Object.values({ ...weights, ...manifest.host_weights }).flatMap(({ quantization }) => quantization ?? []),
    );
    this.description = {
      page_size: pageSize,
      quantization: [...formats].sort().join(", "),
      groups: this.groups.map(({ window, layers }) => ({
        window,
        layers: layers.map(({ name, heads, headDim }) => [name, heads, headDim]),
      })),
      states: slots.map(([name, entry]) => [name, sizesOf(entry)]),
    };
  }

  /** How many pages at the start of each group no token from ``length`` on reads. */
  dead(length: number): readonly number[] {
    return this.groups.map(({ window }) =>
      window === null ? 0 : Math.max(0, Math.floor((length - window + 1) / this.pageSize)),
    );
  }

  /** A page as it travels in the form of this device. */
  toDevice(group: number, wire: Bytes): Bytes {
    const { layers, bytes } = this.#group(group);
    const form = this.#form;
    if (form === Q4) return wire;
    const page = new Uint8Array(bytes);
    let [from, to] = [0, 0];
    for (const { heads, headDim, bytes: size, wireBytes } of layers) {
      const words = wordsOf(wire, from, wireBytes);
      const rows = heads * this.pageSize;
      const numbers = new Float32Array(2 * rows * headDim);
      this.#eachBlock(heads, (block, isKey) => {
        const values = numbersOf(this.#unpacked(words, block, headDim, Q4), headDim);
        if (isKey) rotate(values, headDim);
        numbers.set(values, block * this.pageSize * headDim);
      });
      page.set(this.#asStored(numbers, heads, headDim), to);
      from += wireBytes;
      to += size;
    }
    return page;
  }

  /** The bytes of all states of a slot as they travel. */
  statesBytes(dtype: StatesDtype): number {
    return this.#states.reduce((sum, state) => sum + stateBytes(state, dtype), 0);
  }

  /** States as they travel as the device stores them: float32. */
  statesToDevice(content: Bytes, dtype: StatesDtype): Bytes {
    if (dtype === "float32") return content;
    const numbers = new Float32Array(this.stateSize);
    let [from, to] = [0, 0];
    for (const state of this.#states) {
      const { size, headDim } = state;
      const form = FORMS[dtype] ?? null;
      const wire = content.slice(from, (from += stateBytes(state, dtype))).buffer;
      if (headDim === null || form === null) numbers.set(fromHalves(new Uint16Array(wire)), to);
      else {
        const values = numbersOf(unpackRows(new Uint32Array(wire), 0, form, headDim, size / headDim), headDim);
        rotate(values, headDim);
        numbers.set(values, to);
      }
      to += size;
    }
    return new Uint8Array(numbers.buffer);
  }

  /** By layer, a page that this device has computed as it would travel. */
  rowsOfDevice(group: number, page: Bytes): readonly Rows[] {
    let from = 0;
    return this.#group(group).layers.map(({ heads, headDim, bytes }) => {
      const stored = page.slice(from, from + bytes);
      from += bytes;
      const size = this.pageSize * headDim;
      return this.#joined(heads, headDim, (block, isKey) => {
        const form = this.#form;
        if (form === Q4) return this.#unpacked(wordsOf(stored, 0, bytes), block, headDim, Q4);
        const values =
          form === null
            ? this.#computed(stored, block * size, size)
            : numbersOf(this.#unpacked(wordsOf(stored, 0, bytes), block, headDim, form), headDim);
        if (isKey) rotate(values, headDim);
        return codesOf(values, Q4, headDim);
      });
    });
  }

  /** By layer, a page as it travels. */
  rowsOfWire(group: number, wire: Bytes): readonly Rows[] {
    let from = 0;
    return this.#group(group).layers.map(({ heads, headDim, wireBytes }) => {
      const words = wordsOf(wire, from, wireBytes);
      from += wireBytes;
      return this.#joined(heads, headDim, (block) => this.#unpacked(words, block, headDim, Q4));
    });
  }

  #unpacked(words: Uint32Array, block: number, headDim: number, form: KvForm): Rows {
    return unpackRows(words, block * blockWords(form, headDim, this.pageSize), form, headDim, this.pageSize);
  }

  /** The rows of all planes and kv heads. */
  #joined(heads: number, headDim: number, rowsOf: (block: number, isKey: boolean) => Rows): Rows {
    const codes = new Int8Array(2 * heads * this.pageSize * headDim);
    const scales = new Float32Array(2 * heads * this.pageSize);
    this.#eachBlock(heads, (block, isKey) => {
      const rows = rowsOf(block, isKey);
      codes.set(rows.codes, block * rows.codes.length);
      scales.set(rows.scales, block * rows.scales.length);
    });
    return { codes, scales };
  }

  #group(index: number): Group {
    const group = this.groups[index];
    if (group === undefined) throw new Error(`there is no page group ${index}`);
    return group;
  }

  /** The rows of each plane, keys then values, and kv head. */
  #eachBlock(heads: number, visit: (block: number, isKey: boolean) => void): void {
    for (let block = 0; block < 2 * heads; block++) visit(block, block < heads);
  }

  #computed(stored: Bytes, start: number, size: number): Float32Array {
    if (this.#stored === "float32") return new Float32Array(stored.slice(4 * start, 4 * (start + size)).buffer);
    return fromHalves(new Uint16Array(stored.slice(2 * start, 2 * (start + size)).buffer));
  }

  /** Numbers of a layer's page, without rotation, as the device stores them. */
  #asStored(numbers: Float32Array<ArrayBuffer>, heads: number, headDim: number): Bytes {
    if (this.#form === Q8) {
      const size = blockWords(Q8, headDim, this.pageSize);
      const words = new Uint32Array(2 * heads * size);
      const rows = this.pageSize * headDim;
      this.#eachBlock(heads, (block) => {
        packRows(numbers.subarray(block * rows, (block + 1) * rows), Q8, headDim, words, block * size);
      });
      return new Uint8Array(words.buffer);
    }
    if (this.#stored === "float32") return new Uint8Array(numbers.buffer);
    const halves = new Uint16Array(numbers.length);
    toHalves(numbers, halves);
    return new Uint8Array(halves.buffer);
  }
}

/** As `State` and `pack_states` in server_fallback/far_prefill/layout.py. */
function stateOf(sizes: readonly number[]): State {
  const size = sizes.reduce((all, each) => all * each, 1);
  const last = sizes.at(-1) ?? 1;
  return { size, headDim: sizes.length === 3 && last % 8 === 0 ? last : null };
}

function stateBytes({ size, headDim }: State, dtype: StatesDtype): number {
  if (dtype === "float32") return 4 * size;
  const form = FORMS[dtype] ?? null;
  return headDim === null || form === null ? 2 * size : 4 * blockWords(form, headDim, size / headDim);
}

function sizesOf({ shape }: BufferEntry): readonly number[] {
  return shape.slice(1).map(Number);
}

function wordsOf(bytes: Bytes, start: number, size: number): Uint32Array {
  return new Uint32Array(bytes.slice(start, start + size).buffer);
}

function notExchanged(why: string): RequestError {
  return new RequestError(`This model's prompts are computed on the device: ${why}`, { code: "prefill_unavailable" });
}
