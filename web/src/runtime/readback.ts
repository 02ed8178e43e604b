// Readback: a result's way from the device to the host. The result's buffer flows in, a copy of its bytes flows out.

import type { Allocator } from "./allocator.js";
import { BUFFER_USAGE, MAP_MODE } from "./gpu_flags.js";

export class Readback {
  readonly #staging: GPUBuffer;

  constructor(
    allocator: Allocator,
    private readonly result: GPUBuffer,
  ) {
    this.#staging = allocator.allocate(`${result.label} readback`, result.size, BUFFER_USAGE.MAP_READ | BUFFER_USAGE.COPY_DST);
  }

  /** Encode the copy of the first ``size`` bytes. */
  copy(encoder: GPUCommandEncoder, size: number): void {
    encoder.copyBufferToBuffer(this.result, 0, this.#staging, 0, size);
  }

  /** The bytes, once all that was submitted before is done. One call at a time. */
  async read(size: number): Promise<ArrayBuffer> {
    await this.#staging.mapAsync(MAP_MODE.READ, 0, size);
    const bytes = this.#staging.getMappedRange(0, size).slice(0);
    this.#staging.unmap();
    return bytes;
  }
}
