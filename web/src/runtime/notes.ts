// Notes: measurements of a device that are stored from one load to the next. Keys and values are JSON values.

export interface Notes {
  /** Undefined if there is no such note. */
  read(key: string): Promise<unknown>;
  write(key: string, value: unknown): Promise<void>;
}

const DATABASE = "nearfar";
const STORE = "notes";

/**
 * Notes in IndexedDB, which pages and workers share. If notes cannot be stored or read, as in private windows and in
 * Node, they count as missing, and the measurement is repeated.
 */
export function browserNotes(): Notes {
  return {
    read: (key) => inStore("readonly", (store) => store.get(key)).catch(() => undefined),
    write: (key, value) => inStore("readwrite", (store) => store.put(value, key)).then(nothing, nothing),
  };
}

async function inStore(mode: IDBTransactionMode, access: (store: IDBObjectStore) => IDBRequest): Promise<unknown> {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore(STORE);
  };
  const database = await resultOf(opening);
  try {
    return await resultOf(access(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close();
  }
}

function resultOf<T>(request: IDBRequest<T>): Promise<T> {
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
  // Whether the note was written makes no difference now.
}
