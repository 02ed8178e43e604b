// Copies, reads and writes complete pages of keys and values. The bytes of a page are those of all layers of its group,
// in the order of the plan. The slots of recurrent layers' states are read and written as the pages of a last group.

import { RequestError } from "../errors.js";
import { Allocator } from "./allocator.js";
import type { Dims } from "./expr.js";
import type { Manifest } from "./manifest.js";
import { sizeBytes } from "./memory.js";
import type { PageCopies, PagesByGroup } from "./page_groups.js";
import { HEAD_DIMS, PAGE_DIMS, STATE_DIM } from "./page_groups.js";
import { arraysOf } from "./plan.js";
import type { Piece } from "./staging.js";
import { Staging } from "./staging.js";
import type { ActivationDtype } from "./variants.js";

// Some devices limit buffers to 256 MiB, and smaller buffers are easier to allocate.
const MAX_STAGING_BYTES = 32 * 2 ** 20;

interface Layer {
  readonly buffer: GPUBuffer;
  /** The bytes of one page. */
  readonly size: number;
}

interface Group {
  readonly pages: number;
  readonly layers: readonly Layer[];
  /** What is copied with a page, but neither read nor written: the rows that the model's own heads read. */
  readonly copied: readonly Layer[];
}

export class KvPages {
  readonly #groups: readonly Group[];
  /** The bytes of the largest page of a layer. */
  readonly #largest: number;
  #scratch: GPUBuffer | null = null;

  constructor(
    private readonly allocator: Allocator,
    manifest: Manifest,
    activation: ActivationDtype,
    capacity: Dims,
    buffers: ReadonlyMap<string, GPUBuffer>,
  ) {
    const dims = [...PAGE_DIMS, STATE_DIM].filter((dim) => (capacity[dim] ?? 0) > 0);
    const layersOf = (dim = ""): readonly Layer[] =>
      Object.entries(arraysOf(manifest).states).flatMap(([name, entry]) => {
        const buffer = buffers.get(name);
        return entry.shape[0] === dim && buffer !== undefined && (capacity[dim] ?? 0) > 0
          ? [{ buffer, size: sizeBytes(entry, activation, { ...capacity, [dim]: 1 }) }]
          : [];
      });
    this.#groups = dims.map((dim, group) => ({
      pages: capacity[dim] ?? 0,
      layers: layersOf(dim),
      copied: group === 0 ? layersOf(HEAD_DIMS[0]) : [],
    }));
    const all = this.#groups.flatMap(({ layers, copied }) => [...layers, ...copied]);
    this.#largest = Math.max(0, ...all.map(({ size }) => size));
  }

  copy(pairs: PageCopies): void {
    this.#require(pairs.map((some) => some.flat()));
    // WebGPU cannot copy within one buffer, so a second one is used.
    this.#scratch ??= this.allocator.storage("page copy", this.#largest);
    const encoder = this.allocator.device.createCommandEncoder();
    for (const [group, { layers, copied }] of this.#groups.entries()) {
      for (const [from, to] of pairs[group] ?? []) {
        for (const { buffer, size } of [...layers, ...copied]) {
          encoder.copyBufferToBuffer(buffer, from * size, this.#scratch, 0, size);
          encoder.copyBufferToBuffer(this.#scratch, 0, buffer, to * size, size);
        }
      }
    }
    this.allocator.device.queue.submit([encoder.finish()]);
  }

  /** The contents of the pages at the time of the call, one group after the other. */
  async read(pages: PagesByGroup): Promise<Uint8Array<ArrayBuffer>> {
    const pieces = this.#pieces(pages);
    const { device } = this.allocator;
    // Reads are rare and have any size, so their buffers are not reused.
    const own = new Allocator(device);
    try {
      const encoder = device.createCommandEncoder();
      const reads: (() => Promise<ArrayBuffer>)[] = [];
      const perBuffer = Math.max(1, Math.floor(MAX_STAGING_BYTES / this.#largest));
      for (let start = 0; start < pieces.length; start += perBuffer) {
        const some = pieces.slice(start, start + perBuffer);
        reads.push(new Staging(own, "pages", sizeOf(some)).copy(encoder, some));
      }
      device.queue.submit([encoder.finish()]);
      const bytes = new Uint8Array(sizeOf(pieces));
      let offset = 0;
      for (const part of await Promise.all(reads.map((read) => read()))) {
        bytes.set(new Uint8Array(part), offset);
        offset += part.byteLength;
      }
      return bytes;
    } finally {
      own.destroy();
    }
  }

  write(pages: PagesByGroup, bytes: Uint8Array<ArrayBuffer>): void {
    const pieces = this.#pieces(pages);
    const expected = sizeOf(pieces);
    if (bytes.length !== expected) {
      throw new RequestError(
        `${pages.flat().length} pages of this model are ${expected} bytes, not ${bytes.length}; ` +
          "read them from the same bundle",
        { expected, found: bytes.length },
      );
    }
    let from = 0;
    for (const { source, offset, size } of pieces) {
      this.allocator.device.queue.writeBuffer(source, offset, bytes, from, size);
      from += size;
    }
  }

  /** The parts of the buffers that hold some pages. */
  #pieces(pages: PagesByGroup): readonly Required<Piece>[] {
    this.#require(pages);
    return this.#groups.flatMap(({ layers }, group) =>
      (pages[group] ?? []).flatMap((page) =>
        layers.map(({ buffer, size }) => ({ source: buffer, offset: page * size, size })),
      ),
    );
  }

  #require(pages: PagesByGroup): void {
    pages.forEach((some, group) => {
      const most = this.#groups[group]?.pages ?? 0;
      const page = some.find((each) => !Number.isInteger(each) || each < 0 || each >= most);
      if (page !== undefined)
        throw new RequestError(`Page ${page} is not in the pool; its pages are 0 to ${most - 1}`, { page });
    });
  }
}

function sizeOf(pieces: readonly Required<Piece>[]): number {
  return pieces.reduce((sum, { size }) => sum + size, 0);
}
