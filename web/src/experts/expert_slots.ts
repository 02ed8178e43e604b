// The slots of one layer's experts on the device: which expert is in which slot, and who leaves when another one comes.

export interface Turn {
  /** The slot of each expert that the device holds for the next steps. */
  readonly slots: ReadonlyMap<number, number>;
  /** Those of them that must be loaded first. */
  readonly missing: readonly number[];
}

export class ExpertSlots {
  /** By expert; the one that was used the longest time ago is the first. */
  readonly #slots = new Map<number, number>();
  readonly #free: number[];

  constructor(readonly size: number) {
    this.#free = Array.from({ length: size }, (_, index) => size - 1 - index);
  }

  /** Assign slots to as many of these experts as there are slots, first to those that are there. */
  take(experts: Iterable<number>): Turn {
    const slots = new Map<number, number>();
    const others: number[] = [];
    for (const expert of experts) {
      const slot = this.#slots.get(expert);
      if (slot === undefined) {
        others.push(expert);
        continue;
      }
      this.#use(expert, slot);
      slots.set(expert, slot);
    }
    const missing = others.slice(0, this.size - slots.size);
    for (const expert of missing) {
      const slot = this.#free.pop() ?? this.#evict();
      this.#use(expert, slot);
      slots.set(expert, slot);
    }
    return { slots, missing };
  }

  /** These experts could not be loaded. */
  drop(experts: readonly number[]): void {
    for (const expert of experts) {
      const slot = this.#slots.get(expert);
      if (slot !== undefined) this.#free.push(slot);
      this.#slots.delete(expert);
    }
  }

  #use(expert: number, slot: number): void {
    this.#slots.delete(expert);
    this.#slots.set(expert, slot);
  }

  /** The experts of this turn are the last ones, and fewer than there are slots. */
  #evict(): number {
    const [[expert, slot] = [-1, 0]] = this.#slots;
    this.#slots.delete(expert);
    return slot;
  }
}
