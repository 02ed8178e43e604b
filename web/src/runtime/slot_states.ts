// The states of each slot on the device: token counts, logit bias and token mask of a sequence, or the matrices of a LoRA
// adapter.

import { BundleError, RequestError } from "../errors.js";
import type { Allocator } from "./allocator.js";
import type { Dims } from "./expr.js";
import { elements } from "./expr.js";
import type { Manifest } from "./manifest.js";
import { planOf } from "./plan.js";

export class SlotStates {
  constructor(
    private readonly allocator: Allocator,
    private readonly manifest: Manifest,
    private readonly capacity: Dims,
    private readonly buffers: ReadonlyMap<string, GPUBuffer>,
  ) {}

  /** Set a slot's values; null for zeros. Throws RequestError for an unknown slot or a wrong number of values. */
  set(name: string, slot: number, values: Int32Array<ArrayBuffer> | Float32Array<ArrayBuffer> | null): void {
    const entry = planOf(this.manifest).states[name];
    const buffer = this.buffers.get(name);
    if (entry === undefined || buffer === undefined)
      throw new BundleError(`manifest.json: state ${name} is missing; compile the bundle again`);
    const slots = this.capacity[String(entry.shape[0])] ?? 0;
    const length = elements(entry.shape.slice(1), this.capacity);
    if (!Number.isInteger(slot) || slot < 0 || slot >= slots)
      throw new RequestError(`${name}: slot ${slot} is not one of 0 to ${slots - 1}`, { slot });
    if (values !== null && values.length !== length) {
      throw new RequestError(`${name}: ${values.length} values do not fit a slot of ${length}`, {
        found: values.length,
        expected: length,
      });
    }
    const { device } = this.allocator;
    const offset = slot * length * 4;
    if (values !== null) {
      device.queue.writeBuffer(buffer, offset, values);
      return;
    }
    const encoder = device.createCommandEncoder();
    encoder.clearBuffer(buffer, offset, length * 4);
    device.queue.submit([encoder.finish()]);
  }
}
