// The room of a plan's buffers: without pages they start small and grow with the batches, since most texts are short.

import type { Allocator } from "./allocator.js";
import type { Dims } from "./expr.js";
import type { Manifest } from "./manifest.js";
import { passingBuffers, sizeBytes } from "./memory.js";
import type { ActivationDtype } from "./variants.js";

/** The tokens of the first batches of complete texts. */
const FIRST_TOKENS = 256;

export class Room {
  #dims: Dims;

  /** ``capacity`` contains the dims of the largest batch; ``buffers`` receives the buffers by name. */
  constructor(
    private readonly allocator: Allocator,
    private readonly manifest: Manifest,
    private readonly activation: ActivationDtype,
    private readonly capacity: Dims,
    private readonly buffers: Map<string, GPUBuffer>,
    grows: boolean,
  ) {
    this.#dims = grows ? { ...capacity, S: Math.min(capacity.S ?? 0, FIRST_TOKENS) } : capacity;
    this.#allocate();
  }

  suffices(tokens: number): boolean {
    return tokens <= (this.#dims.S ?? 0);
  }

  /**
   * Replace the buffers by those for the next power of two of tokens, within the capacity. Work that was submitted still
   * uses the old ones.
   */
  grow(tokens: number): void {
    const next = 2 ** Math.ceil(Math.log2(tokens));
    this.#dims = { ...this.#dims, S: Math.min(this.capacity.S ?? 0, next) };
    this.#allocate();
  }

  #allocate(): void {
    for (const [name, entry] of Object.entries(passingBuffers(this.manifest))) {
      const before = this.buffers.get(name);
      if (before !== undefined) this.allocator.free(before);
      this.buffers.set(name, this.allocator.storage(name, sizeBytes(entry, this.activation, this.#dims)));
    }
  }
}
