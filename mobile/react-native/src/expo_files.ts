// The file system of expo-file-system (SDK 54 and later), whose calls are synchronous.

import type { FileSystem } from "./file_system.js";

interface ExpoHandle {
  offset: number | null;
  readonly size: number | null;
  readBytes(length: number): Uint8Array<ArrayBuffer>;
  writeBytes(bytes: Uint8Array): void;
  close(): void;
}

interface ExpoFile {
  readonly exists: boolean;
  readonly size: number | null;
  open(): ExpoHandle;
  create(): void;
  move(to: ExpoFile): unknown;
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
  const at = <T>(path: string, work: (handle: ExpoHandle) => T): T => {
    const handle = new File(path).open();
    try {
      return work(handle);
    } finally {
      handle.close();
    }
  };
  const remove = (path: string): void => {
    for (const each of [new File(path), new Directory(path)]) if (each.exists) each.delete();
  };
  // Expo's calls throw. This turns the errors into rejected promises.
  const later = async <T>(work: () => T): Promise<T> => Promise.resolve().then(work);
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
      later(() => {
        const file = new File(path);
        if (!file.exists) file.create();
        at(path, (handle) => {
          handle.offset = handle.size ?? 0;
          handle.writeBytes(bytes);
        });
      }),
    makeFolder: (path) =>
      later(() => {
        new Directory(path).create({ intermediates: true, idempotent: true });
      }),
    move: (from, to) =>
      later(() => {
        remove(to);
        new File(from).move(new File(to));
      }),
    remove: (path) =>
      later(() => {
        remove(path);
      }),
    freeBytes: () => later(() => Paths.availableDiskSpace),
  };
}
