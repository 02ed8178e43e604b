// Copies, reads and writes complete pages of the keys and values of all layers. The bytes of a page are those of its
// layers, in the order of the plan.

import { RequestError } from "../errors.js";
import { Allocator } from "./allocator.js";
import type { Dims } from "./expr.js";
import type { Manifest } from "./manifest.js";
import { sizeBytes } from "./memory.js";
import { planOf } from "./plan.js";
import { Staging } from "./staging.js";
import type { ActivationDtype } from "./variants.js";

// Some devices limit buffers to 256 MiB, and smaller buffers are easier to allocate.
const MAX_STAGING_BYTES = 32 * 2 ** 20;

interface Layer {
  readonly buffer: GPUBuffer;
  /** The bytes of one page. */
  readonly size: number;
}

export class KvPages {
  readonly #layers: readonly Layer[];
  /** The bytes of one page in all layers. */
  readonly #pageBytes: number;
  #scratch: GPUBuffer | null = null;

  constructor(
    private readonly allocator: Allocator,
    manifest: Manifest,
    activation: ActivationDtype,
    private readonly capacity: Dims,
    buffers: ReadonlyMap<string, GPUBuffer>,
  ) {
    this.#layers = Object.entries(planOf(manifest).states).flatMap(([name, entry]) => {
      const buffer = buffers.get(name);
      return entry.shape[0] === "P" && buffer !== undefined
        ? [{ buffer, size: sizeBytes(entry, activation, { ...capacity, P: 1 }) }]
        : [];
    });
    this.#pageBytes = this.#layers.reduce((sum, { size }) => sum + size, 0);
  }

  copy(pairs: readonly (readonly [from: number, to: number])[]): void {
    this.#require(pairs.flat());
    // WebGPU cannot copy within one buffer, so a second one is used.
    this.#scratch ??= this.allocator.storage("page copy", Math.max(0, ...this.#layers.map(({ size }) => size)));
    const encoder = this.allocator.device.createCommandEncoder();
    for (const [from, to] of pairs) {
      for (const { buffer, size } of this.#layers) {
        encoder.copyBufferToBuffer(buffer, from * size, this.#scratch, 0, size);
        encoder.copyBufferToBuffer(this.#scratch, 0, buffer, to * size, size);
      }
    }
    this.allocator.device.queue.submit([encoder.finish()]);
  }

  /** The contents of the pages at the time of the call. */
  async read(pages: readonly number[]): Promise<Uint8Array<ArrayBuffer>> {
    this.#require(pages);
    const { device } = this.allocator;
    // Reads are rare and have any size, so their buffers are not reused.
    const own = new Allocator(device);
    try {
      const encoder = device.createCommandEncoder();
      const perBuffer = Math.max(1, Math.floor(MAX_STAGING_BYTES / this.#pageBytes));
      const reads: (() => Promise<ArrayBuffer>)[] = [];
      for (let start = 0; start < pages.length; start += perBuffer) {
        const some = pages.slice(start, start + perBuffer);
        const pieces = some.flatMap((page) =>
          this.#layers.map(({ buffer, size }) => ({ source: buffer, offset: page * size, size })),
        );
        reads.push(new Staging(own, "pages", some.length * this.#pageBytes).copy(encoder, pieces));
      }
      device.queue.submit([encoder.finish()]);
      const bytes = new Uint8Array(pages.length * this.#pageBytes);
      for (const [index, part] of (await Promise.all(reads.map((read) => read()))).entries()) {
        bytes.set(new Uint8Array(part), index * perBuffer * this.#pageBytes);
      }
      return bytes;
    } finally {
      own.destroy();
    }
  }

  write(pages: readonly number[], bytes: Uint8Array<ArrayBuffer>): void {
    this.#require(pages);
    if (bytes.length !== pages.length * this.#pageBytes) {
      throw new RequestError(
        `${pages.length} pages of this model are ${pages.length * this.#pageBytes} bytes, not ${bytes.length}; ` +
          "read them from the same bundle",
        {
          expected: pages.length * this.#pageBytes,
          found: bytes.length,
        },
      );
    }
    let offset = 0;
    for (const page of pages) {
      for (const { buffer, size } of this.#layers) {
        this.allocator.device.queue.writeBuffer(buffer, page * size, bytes, offset, size);
        offset += size;
      }
    }
  }

  #require(pages: readonly number[]): void {
    const most = this.capacity.P ?? 0;
    const page = pages.find((each) => !Number.isInteger(each) || each < 0 || each >= most);
    if (page !== undefined)
      throw new RequestError(`Page ${page} is not in the pool; its pages are 0 to ${most - 1}`, { page });
  }
}
