// Allocates GPU buffers. destroy() frees all buffers of the allocator.

import { BUFFER_USAGE } from "./gpu_flags.js";

export class Allocator {
  readonly #buffers: GPUBuffer[] = [];
  #bytes = 0;

  constructor(readonly device: GPUDevice) {}

  /** Bytes that are allocated. */
  get bytes(): number {
    return this.#bytes;
  }

  /** A storage buffer of at least ``size`` bytes, zeroed. */
  storage(label: string, size: number): GPUBuffer {
    return this.allocate(label, size, BUFFER_USAGE.STORAGE | BUFFER_USAGE.COPY_DST | BUFFER_USAGE.COPY_SRC);
  }

  allocate(label: string, size: number, usage: GPUBufferUsageFlags): GPUBuffer {
    const buffer = this.device.createBuffer({ label, size: paddedSize(size), usage });
    this.#buffers.push(buffer);
    this.#bytes += buffer.size;
    return buffer;
  }

  free(buffer: GPUBuffer): void {
    this.#buffers.splice(this.#buffers.indexOf(buffer), 1);
    this.#bytes -= buffer.size;
    buffer.destroy();
  }

  destroy(): void {
    for (const buffer of this.#buffers.splice(0)) buffer.destroy();
    this.#bytes = 0;
  }
}

/** A kernel reads up to four 32-bit words at once, so the size of a buffer is a multiple of 16 bytes. */
export function paddedSize(size: number): number {
  return Math.max(16, Math.ceil(size / 16) * 16);
}
