// Staging buffers, which transfer results from the device to the host. A buffer is created at the start, or when all
// others are in use, and is then reused.

import type { Allocator } from "./allocator.js";
import { BUFFER_USAGE, MAP_MODE } from "./gpu_flags.js";

/** ``size`` bytes of ``source`` from ``offset`` on. */
export interface Piece {
  readonly source: GPUBuffer;
  readonly offset?: number;
  readonly size: number;
}

export class Staging {
  readonly #free: GPUBuffer[] = [];

  /**
   * ``size`` is the maximum number of bytes of one read, ``count`` the number of buffers that are created at the start.
   */
  constructor(
    private readonly allocator: Allocator,
    private readonly label: string,
    private readonly size: number,
    count = 0,
  ) {
    for (let index = 0; index < count; index++) this.#free.push(this.#make());
  }

  /**
   * Encode the copies. After the encoder's commands are submitted, the returned function reads the bytes, one piece
   * after the other.
   */
  copy(encoder: GPUCommandEncoder, pieces: readonly Piece[]): () => Promise<ArrayBuffer> {
    const buffer = this.#free.pop() ?? this.#make();
    let size = 0;
    for (const piece of pieces) {
      encoder.copyBufferToBuffer(piece.source, piece.offset ?? 0, buffer, size, piece.size);
      size += piece.size;
    }
    return async () => {
      await buffer.mapAsync(MAP_MODE.READ, 0, size);
      const bytes = buffer.getMappedRange(0, size).slice(0);
      buffer.unmap();
      this.#free.push(buffer);
      return bytes;
    };
  }

  #make(): GPUBuffer {
    return this.allocator.allocate(`${this.label} staging`, this.size, BUFFER_USAGE.MAP_READ | BUFFER_USAGE.COPY_DST);
  }
}
