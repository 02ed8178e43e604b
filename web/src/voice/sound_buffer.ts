// The sound that may still be needed, by the numbers of its samples.

import { joined } from "../audio/resample.js";

export class SoundBuffer {
  readonly #blocks: Float32Array[] = [];
  /** The numbers of the first sample and of the one after the last. */
  #start = 0;
  #end = 0;

  get end(): number {
    return this.#end;
  }

  push(block: Float32Array): void {
    this.#blocks.push(block);
    this.#end += block.length;
  }

  /** The samples from ``sample`` on, or from the first one that is still there. */
  since(sample: number): Float32Array<ArrayBuffer> {
    return joined(this.#blocks).slice(Math.max(0, sample - this.#start));
  }

  /** Forget the blocks that end before ``sample``. */
  forget(sample: number): void {
    let block = this.#blocks[0];
    while (block !== undefined && this.#start + block.length <= sample) {
      this.#start += block.length;
      this.#blocks.shift();
      block = this.#blocks[0];
    }
  }
}
