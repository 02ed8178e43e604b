// Tiles of pictures, and sounds, that wait for their features, which are computed between steps, in the order in which they came.

import { DeviceError } from "../errors.js";
import type { Batch, PatchBatch } from "../runtime/batch.js";

type Features = Float32Array<ArrayBuffer>;

interface Tile {
  readonly batch: PatchBatch | Batch;
  readonly resolve: (features: Features) => void;
  readonly reject: (error: unknown) => void;
}

export class Tiles {
  readonly #waiting: Tile[] = [];

  get areWaiting(): boolean {
    return this.#waiting.length > 0;
  }

  add(batch: PatchBatch | Batch): Promise<Features> {
    return new Promise((resolve, reject) => this.#waiting.push({ batch, resolve, reject }));
  }

  /**
   * Computes the features of the next tile. False if that fails for a reason of its own, which its reader receives. Throws
   * DeviceError; the tile then waits for another device.
   */
  async compute(features: (batch: PatchBatch | Batch) => Promise<Features | undefined>): Promise<boolean> {
    const [tile] = this.#waiting;
    if (tile === undefined) return false;
    try {
      tile.resolve((await features(tile.batch)) ?? new Float32Array());
    } catch (error) {
      if (error instanceof DeviceError) throw error;
      tile.reject(error);
      this.#waiting.shift();
      return false;
    }
    this.#waiting.shift();
    return true;
  }

  fail(reason: Error): void {
    for (const tile of this.#waiting.splice(0)) tile.reject(reason);
  }
}
