// Notes: what was found out about a device, kept from one load to the next. Keys and values that JSON can hold flow in and out.

export interface Notes {
  /** Undefined where there is none. */
  read(key: string): Promise<unknown>;
  write(key: string, value: unknown): Promise<void>;
}

const DATABASE = "nearfar";
const STORE = "notes";

/**
 * Notes in IndexedDB, which pages and workers share. A note that cannot be kept or read, as in private windows and in Node, is as if never made: all
 * that it costs is to find out again.
 */
export function browserNotes(): Notes {
  return {
    read: (key) => inStore("readonly", (store) => store.get(key)).catch(() => undefined),
    write: (key, value) => inStore("readwrite", (store) => store.put(value, key)).then(nothing, nothing),
  };
}

async function inStore(mode: IDBTransactionMode, ask: (store: IDBObjectStore) => IDBRequest): Promise<unknown> {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore(STORE);
  };
  const database = await answered(opening);
  try {
    return await answered(ask(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close();
  }
}

function answered<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => {
      resolve(request.result);
    };
    request.onerror = () => {
      reject(request.error ?? new Error("IndexedDB gives no reason"));
    };
  });
}

function nothing(): void {
  // Whether it was written makes no difference now.
}
