// The parts of a browser's origin private file system and locks that the store uses, in memory.

import type { Folder } from "../../src/store/opfs.js";

/** ``capacity`` in bytes of all files together. */
export interface MemoryDisk {
  readonly root: Folder;
  capacity: number;
  /** The error of a write beyond the capacity; a truncate always fails with the correct error. */
  fullError: string;
  /** All files by path. */
  readonly files: Map<string, Uint8Array<ArrayBuffer>>;
}

export function memoryDisk(): MemoryDisk {
  const files = new Map<string, Uint8Array<ArrayBuffer>>();
  const folders = new Set<string>();
  const changed = new Map<string, number>();
  const disk = { capacity: Infinity, fullError: "QuotaExceededError", files, root: undefined as unknown as Folder };

  const used = (): number => [...files.values()].reduce((sum, bytes) => sum + bytes.length, 0);
  const missing = (path: string): DOMException => new DOMException(`${path} is not here`, "NotFoundError");
  const inside = (path: string): string[] =>
    [...files.keys(), ...folders].filter((name) => name.startsWith(`${path}/`));

  const fileHandle = (path: string): unknown => ({
    kind: "file",
    getFile: () => {
      const bytes = files.get(path);
      return bytes === undefined
        ? Promise.reject(missing(path))
        : Promise.resolve(new File([bytes], path, { lastModified: changed.get(path) ?? 0 }));
    },
    createWritable: () => {
      let written = new Uint8Array();
      const grow = (bytes: Uint8Array<ArrayBuffer>, fullError = "QuotaExceededError"): Promise<void> => {
        const room = disk.capacity - used() + (files.get(path)?.length ?? 0);
        if (bytes.length > room) return Promise.reject(new DOMException("no room", fullError));
        written = bytes;
        return Promise.resolve();
      };
      return Promise.resolve({
        write: (content: Uint8Array | string) =>
          grow(
            typeof content === "string" ? new Uint8Array(new TextEncoder().encode(content)) : new Uint8Array(content),
            disk.fullError,
          ),
        truncate: (length: number) => grow(new Uint8Array(length)),
        abort: () => Promise.resolve(),
        close: () => {
          files.set(path, written);
          changed.set(path, Date.now());
          return Promise.resolve();
        },
      });
    },
  });

  const folderHandle = (path: string): Folder => {
    const children = (): string[] => [
      ...new Set(inside(path).map((name) => name.slice(path.length + 1).split("/")[0] ?? "")),
    ];
    const handle = {
      kind: "directory",
      name: path,
      getDirectoryHandle: (name: string, options?: { create?: boolean }) => {
        if (options?.create === true) folders.add(`${path}/${name}`);
        return folders.has(`${path}/${name}`)
          ? Promise.resolve(folderHandle(`${path}/${name}`))
          : Promise.reject(missing(name));
      },
      getFileHandle: (name: string, options?: { create?: boolean }) => {
        if (options?.create === true && !files.has(`${path}/${name}`)) files.set(`${path}/${name}`, new Uint8Array());
        return files.has(`${path}/${name}`)
          ? Promise.resolve(fileHandle(`${path}/${name}`))
          : Promise.reject(missing(name));
      },
      removeEntry: (name: string) => {
        const gone = [`${path}/${name}`, ...inside(`${path}/${name}`)].map((each) => [
          files.delete(each),
          folders.delete(each),
        ]);
        return gone.flat().includes(true) ? Promise.resolve() : Promise.reject(missing(name));
      },
      // oxlint-disable-next-line typescript/require-await
      async *keys() {
        yield* children();
      },
      // oxlint-disable-next-line typescript/require-await
      async *entries() {
        for (const name of children())
          yield [name, files.has(`${path}/${name}`) ? fileHandle(`${path}/${name}`) : folderHandle(`${path}/${name}`)];
      },
    };
    return handle as unknown as Folder;
  };

  disk.root = folderHandle("nearfar");
  return disk;
}

/** Exclusive and shared locks, granted in the order of their requests. */
export function memoryLocks(): LockManager {
  const held = new Map<string, { shared: boolean; count: number }>();
  let waiting: (() => void)[] = [];
  const request = async (
    name: string,
    options: LockOptions,
    task: (lock: Lock | null) => Promise<unknown>,
  ): Promise<unknown> => {
    const shared = options.mode === "shared";
    for (;;) {
      const holder = held.get(name);
      if (holder === undefined || (shared && holder.shared)) break;
      if (options.ifAvailable === true) return task(null);
      await new Promise<void>((resolve) => waiting.push(resolve));
      options.signal?.throwIfAborted();
    }
    const lock = held.get(name) ?? { shared, count: 0 };
    lock.count++;
    held.set(name, lock);
    try {
      return await task({ name, mode: shared ? "shared" : "exclusive" });
    } finally {
      lock.count--;
      if (lock.count === 0) held.delete(name);
      const woken = waiting;
      waiting = [];
      for (const wake of woken) wake();
    }
  };
  const query = (): Promise<LockManagerSnapshot> =>
    Promise.resolve({ held: [...held.keys()].map((name) => ({ name })) });
  return { request, query } as unknown as LockManager;
}
