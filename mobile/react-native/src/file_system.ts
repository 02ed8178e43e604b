// What is needed of an app's file system. `expo_files.ts` and `rnfs_files.ts` make it of two packages; tests have one of Node's.

/** Paths are absolute, with / between names. A method that fails throws an Error of the platform's own. */
export interface FileSystem {
  /** The app's own documents folder, which the system does not empty, without a slash at the end. */
  readonly documents: string;
  /** In bytes; null where there is no such file. */
  size(path: string): Promise<number | null>;
  read(path: string, offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  /** Add to the end of a file, which is made where there is none. */
  append(path: string, bytes: Uint8Array<ArrayBuffer>): Promise<void>;
  /** Make a folder and those above it, where they are not there. */
  makeFolder(path: string): Promise<void>;
  /** In place of a file of that name. */
  move(from: string, to: string): Promise<void>;
  /** Nothing where there is no such file or folder. */
  remove(path: string): Promise<void>;
  /** Of the device's storage; null where the platform does not tell. */
  freeBytes(): Promise<number | null>;
  /** The file's SHA-256 in hexadecimal, by native code. Without it JavaScript computes it, which takes longer. */
  sha256?(path: string): Promise<string>;
}

export async function readWhole(files: FileSystem, path: string): Promise<Uint8Array<ArrayBuffer> | null> {
  const size = await files.size(path);
  return size === null ? null : files.read(path, 0, size);
}

/** A file that is either as it was or wholly new, whenever the app is stopped. */
export async function replace(files: FileSystem, path: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
  const part = `${path}.part`;
  await files.remove(part);
  await files.append(part, bytes);
  await files.move(part, path);
}
