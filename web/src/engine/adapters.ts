// What the engine needs of LoRA adapters. adapters.js, which is imported when the first one is loaded, does the rest.

import { RequestError } from "../errors.js";

/** One slot's values of each state of adapters, by name. */
export type AdapterStates = ReadonlyMap<string, Float32Array<ArrayBuffer>>;

export type WriteState = (name: string, slot: number, values: Float32Array<ArrayBuffer>) => void;

/** ``id`` is unique to the adapter's values: keys and values that another one computed cannot be used. */
export interface Adapter {
  readonly name: string;
  readonly id: string;
  readonly slot: number;
}

/** The adapters in a runner's slots, as `Slots` of adapters.js. */
export interface AdapterSlots {
  /** The names that requests may use. */
  readonly names: readonly string[];
  /** Count one more answer that uses an adapter. Throws `notLoaded`. */
  use(name: string): Adapter;
  release(adapter: Adapter): void;
  /** Write all adapters to a new device. */
  restore(write: WriteState): void;
}

export function notLoaded(name: string): RequestError {
  return new RequestError(`Adapter '${name}' is not loaded; load it with loadAdapter`, { param: "adapter" });
}
