// LoRA adapters in a runner's slots: the slot of each adapter, and the number of answers that use it.

import type { Adapter, AdapterSlots, AdapterStates, WriteState } from "../engine/adapters.js";
import { notLoaded } from "../engine/adapters.js";
import { RequestError } from "../errors.js";

interface Loaded extends Adapter {
  readonly states: AdapterStates;
  users: number;
  /** Called when no answer uses the adapter any more; null unless it is being unloaded. */
  unused: (() => void) | null;
}

export class Slots implements AdapterSlots {
  readonly #loaded = new Map<string, Loaded>();
  readonly #free: number[];

  constructor(private readonly slots: number) {
    this.#free = Array.from({ length: slots }, (_, index) => slots - 1 - index);
  }

  /** The names that requests may use. */
  get names(): readonly string[] {
    return [...this.#loaded.values()].filter(({ unused }) => unused === null).map(({ name }) => name);
  }

  /** Write an adapter to a free slot. Throws RequestError if its name or every slot is in use. */
  load(name: string, id: string, states: AdapterStates, write: WriteState): void {
    if (this.#loaded.has(name))
      throw new RequestError(`An adapter '${name}' is loaded already; unload it, or choose another name`, {
        param: "name",
      });
    const slot = this.#free.pop();
    if (slot === undefined)
      throw new RequestError(
        `All ${this.slots} slots for adapters are in use; unload one, or load the model with more (maxAdapters)`,
        { param: "name" },
      );
    try {
      states.forEach((values, state) => {
        write(state, slot, values);
      });
    } catch (error) {
      this.#free.push(slot);
      throw error;
    }
    this.#loaded.set(name, { name, id, slot, states, users: 0, unused: null });
  }

  /** Resolves when no answer uses the adapter any more; no new one can. Throws RequestError if it is not loaded. */
  async unload(name: string): Promise<void> {
    const adapter = this.#find(name);
    const unused = new Promise<void>((resolve) => {
      adapter.unused = resolve;
    });
    this.#freeIfUnused(adapter);
    return unused;
  }

  /** Count one more answer that uses an adapter. Throws RequestError if it is not loaded, or is being unloaded. */
  use(name: string): Adapter {
    const adapter = this.#find(name);
    adapter.users++;
    return adapter;
  }

  release({ name }: Adapter): void {
    const adapter = this.#loaded.get(name);
    if (adapter === undefined) return;
    adapter.users--;
    this.#freeIfUnused(adapter);
  }

  /** Write all adapters to a new device. */
  restore(write: WriteState): void {
    for (const { slot, states } of this.#loaded.values())
      states.forEach((values, state) => {
        write(state, slot, values);
      });
  }

  #find(name: string): Loaded {
    const adapter = this.#loaded.get(name);
    if (adapter?.unused !== null) throw notLoaded(name);
    return adapter;
  }

  #freeIfUnused(adapter: Loaded): void {
    if (adapter.unused === null || adapter.users > 0) return;
    this.#loaded.delete(adapter.name);
    this.#free.push(adapter.slot);
    adapter.unused();
  }
}
