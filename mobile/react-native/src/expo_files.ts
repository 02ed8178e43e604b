// The file system of expo-file-system (SDK 54 and later). Since SDK 58, moving a file and reading and writing its bytes
// return promises; before, these calls were synchronous. All of them are awaited, which both allow.

import type { FileSystem } from "./file_system.js";

type Bytes = Uint8Array<ArrayBuffer>;

interface ExpoHandle {
  offset: number | null;
  readonly size: number | null;
  readBytes(length: number): Bytes | Promise<Bytes>;
  writeBytes(bytes: Uint8Array): unknown;
  close(): void;
}

interface ExpoFile {
  readonly exists: boolean;
  readonly size: number | null;
  open(): ExpoHandle;
  create(): void;
  /** ``to`` is another instance of the package's class. */
  move(to: never): unknown;
  delete(): void;
}

interface ExpoFolder {
  readonly exists: boolean;
  create(options: { readonly intermediates: boolean; readonly idempotent: boolean }): void;
  delete(): void;
}

/** The part of the package that is used. */
export interface ExpoFileSystem {
  readonly File: new (uri: string) => ExpoFile;
  readonly Directory: new (uri: string) => ExpoFolder;
  readonly Paths: { readonly document: { readonly uri: string }; readonly availableDiskSpace: number };
}

export function expoFiles({ File, Directory, Paths }: ExpoFileSystem): FileSystem {
  // ONNX Runtime accepts file:// too, so Expo's paths are used without changes.
  const at = async <T>(path: string, work: (handle: ExpoHandle) => T | Promise<T>): Promise<T> => {
    const handle = new File(path).open();
    try {
      return await work(handle);
    } finally {
      handle.close();
    }
  };
  const remove = (path: string): void => {
    for (const each of [new File(path), new Directory(path)]) if (each.exists) each.delete();
  };
  // Expo's calls throw. This turns the errors into rejected promises.
  const later = async <T>(work: () => T | Promise<T>): Promise<T> => Promise.resolve().then(work);
  return {
    documents: Paths.document.uri.replace(/\/+$/, ""),
    size: (path) =>
      later(() => {
        const file = new File(path);
        return file.exists ? (file.size ?? 0) : null;
      }),
    read: (path, offset, length) =>
      later(() =>
        at(path, (handle) => {
          handle.offset = offset;
          return handle.readBytes(length);
        }),
      ),
    append: (path, bytes) =>
      later(async () => {
        const file = new File(path);
        if (!file.exists) file.create();
        await at(path, async (handle) => {
          handle.offset = handle.size ?? 0;
          await handle.writeBytes(bytes);
        });
      }),
    makeFolder: (path) =>
      later(() => {
        new Directory(path).create({ intermediates: true, idempotent: true });
      }),
    move: (from, to) =>
      later(async () => {
        remove(to);
        await new File(from).move(new File(to) as never);
      }),
    remove: (path) =>
      later(() => {
        remove(path);
      }),
    freeBytes: () => later(() => Paths.availableDiskSpace),
  };
}
