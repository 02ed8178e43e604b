// The ledger: today's requests to the far side and their cost, in a store of texts such as localStorage. A day is a UTC
// day.
//
// A request counts when it is sent, its dollars when the answer has ended. If a text cannot be read as a ledger,
// counting starts at zero: the ledger bounds what is spent, and must not prevent answers.

import type { Spent } from "../shared/decision/costs.js";
import { spentOn } from "../shared/decision/costs.js";

export interface Ledger {
  today(): Spent;
  /** Adds to today's spending and returns the total. */
  add(more: Partial<Spent>): Spent;
}

/** The methods of localStorage that are needed here. */
export interface LedgerStore {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

const BROWSER_KEY = "nearfar far budget";

/** A Ledger under ``key`` of a store. ``now`` returns milliseconds since 1970. */
export class StoredLedger implements Ledger {
  constructor(
    private readonly store: LedgerStore,
    private readonly key: string,
    private readonly now: () => number = Date.now,
  ) {}

  today(): Spent {
    return spentOn(this.store.getItem(this.key), this.#day());
  }

  add({ usd = 0, requests = 0 }: Partial<Spent>): Spent {
    // Read once: a spending that is read before midnight must not be written as the next day's.
    const day = this.#day();
    const before = spentOn(this.store.getItem(this.key), day);
    const spent = { usd: before.usd + usd, requests: before.requests + requests };
    this.store.setItem(this.key, JSON.stringify({ day, ...spent }));
    return spent;
  }

  #day(): string {
    return new Date(this.now()).toISOString().slice(0, 10);
  }
}

/**
 * The ledger of a page, in localStorage, which all tabs of an origin share; in memory if the browser has or allows no
 * storage. ``date`` returns milliseconds since 1970. ``storage`` is called for each access, because a browser may
 * refuse it at any time.
 */
export function browserLedger(
  date: () => number,
  storage: () => LedgerStore | undefined = () => (globalThis as { readonly localStorage?: LedgerStore }).localStorage,
): Ledger {
  const inMemory = new Map<string, string>();
  const use = <T>(run: (store: LedgerStore) => T, otherwise: T): T => {
    try {
      const store = storage();
      return store === undefined ? otherwise : run(store);
    } catch {
      return otherwise;
    }
  };
  const store: LedgerStore = {
    getItem: (key) => inMemory.get(key) ?? use((storage) => storage.getItem(key), null),
    setItem: (key, value) => {
      const isStored = use((storage) => {
        storage.setItem(key, value);
        return true;
      }, false);
      if (isStored) inMemory.delete(key);
      else inMemory.set(key, value);
    },
  };
  return new StoredLedger(store, BROWSER_KEY, date);
}
