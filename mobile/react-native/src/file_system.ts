// The interface of an app's file system. `expo_files.ts` and `rnfs_files.ts` implement it with two packages, tests with
// Node.

/** Paths are absolute, with / between names. A method that fails throws the platform's own Error. */
export interface FileSystem {
  /** The app's own documents folder, which the system does not empty, without a slash at the end. */
  readonly documents: string;
  /** The size in bytes; null if the file does not exist. */
  size(path: string): Promise<number | null>;
  read(path: string, offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  /** Append to a file, which is created if it does not exist. */
  append(path: string, bytes: Uint8Array<ArrayBuffer>): Promise<void>;
  /** Create a folder and its parents, unless they exist. */
  makeFolder(path: string): Promise<void>;
  /** Move a file, replacing an existing one. */
  move(from: string, to: string): Promise<void>;
  /** Remove a file or a folder. Does nothing if it does not exist. */
  remove(path: string): Promise<void>;
  /** Free bytes of the device's storage; null if the platform does not report them. */
  freeBytes(): Promise<number | null>;
  /** The file's SHA-256 in hexadecimal, by native code. Without it, JavaScript computes the hash, which is slower. */
  sha256?(path: string): Promise<string>;
}

export async function readAll(files: FileSystem, path: string): Promise<Uint8Array<ArrayBuffer> | null> {
  const size = await files.size(path);
  return size === null ? null : files.read(path, 0, size);
}

/** Replace a file atomically: whenever the app is stopped, the file is either old or new. */
export async function replace(files: FileSystem, path: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
  const part = `${path}.part`;
  await files.remove(part);
  await files.append(part, bytes);
  await files.move(part, path);
}
