// The ledger of a page: in localStorage, which all tabs of an origin share; where there is none, or none may be used, in memory.

import type { Ledger, LedgerStore } from "./budget.js";
import { StoredLedger } from "./budget.js";

const KEY = "nearfar far budget";

/** ``date`` in milliseconds since 1970. ``storage`` is asked for anew each time, for a browser may refuse it at any time. */
export function browserLedger(date: () => number, storage: () => LedgerStore | undefined = () => (globalThis as { readonly localStorage?: LedgerStore }).localStorage): Ledger {
  const kept = new Map<string, string>();
  const use = <T>(run: (store: LedgerStore) => T, otherwise: T): T => {
    try {
      const store = storage();
      return store === undefined ? otherwise : run(store);
    } catch {
      return otherwise;
    }
  };
  const store: LedgerStore = {
    getItem: (key) => kept.get(key) ?? use((given) => given.getItem(key), null),
    setItem: (key, value) => {
      const isStored = use((given) => {
        given.setItem(key, value);
        return true;
      }, false);
      if (isStored) kept.delete(key);
      else kept.set(key, value);
    },
  };
  return new StoredLedger(store, KEY, date);
}
