// The file system of @dr.pogodin/react-native-fs, and of react-native-fs, whose names it keeps. Bytes cross in base64.

import { decodeBase64, encodeBase64 } from "./base64.js";
import type { FileSystem } from "./file_system.js";

/** What is used of the package. */
export interface Rnfs {
  readonly DocumentDirectoryPath: string;
  exists(path: string): Promise<boolean>;
  stat(path: string): Promise<{ readonly size: number | string }>;
  read(path: string, length: number, position: number, encoding: "base64"): Promise<string>;
  appendFile(path: string, contents: string, encoding: "base64"): Promise<unknown>;
  mkdir(path: string): Promise<unknown>;
  moveFile(from: string, to: string): Promise<unknown>;
  unlink(path: string): Promise<unknown>;
  hash(path: string, algorithm: "sha256"): Promise<string>;
  getFSInfo(): Promise<{ readonly freeSpace: number }>;
}

export function rnfsFiles(rnfs: Rnfs): FileSystem {
  const remove = async (path: string): Promise<void> => {
    if (await rnfs.exists(path)) await rnfs.unlink(path);
  };
  return {
    documents: rnfs.DocumentDirectoryPath,
    size: async (path) => ((await rnfs.exists(path)) ? Number((await rnfs.stat(path)).size) : null),
    read: async (path, offset, length) => decodeBase64(await rnfs.read(path, length, offset, "base64")),
    append: async (path, bytes) => {
      await rnfs.appendFile(path, encodeBase64(bytes), "base64");
    },
    makeFolder: async (path) => {
      await rnfs.mkdir(path);
    },
    move: async (from, to) => {
      await remove(to);
      await rnfs.moveFile(from, to);
    },
    remove,
    freeBytes: async () => (await rnfs.getFSInfo()).freeSpace,
    sha256: async (path) => rnfs.hash(path, "sha256"),
  };
}
