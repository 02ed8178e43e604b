// The file system of @dr.pogodin/react-native-fs, and of react-native-fs, whose names it keeps. Its native module exchanges bytes as base64 (RFC 4648).

import type { FileSystem } from "./file_system.js";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

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

export function encodeBase64(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let place = 0; place < bytes.length; place += 3) {
    const word = ((bytes[place] ?? 0) << 16) | ((bytes[place + 1] ?? 0) << 8) | (bytes[place + 2] ?? 0);
    const letters = [18, 12, 6, 0].map((shift) => LETTERS.charAt((word >> shift) & 63));
    const known = Math.min(3, bytes.length - place) + 1;
    parts.push(letters.slice(0, known).join("").padEnd(4, "="));
  }
  return parts.join("");
}

export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  const letters = text.replace(/=+$/, "");
  const bytes = new Uint8Array(Math.floor((letters.length * 3) / 4));
  let word = 0;
  let filled = 0;
  for (let index = 0; index < letters.length; index++) {
    word = ((word << 6) | LETTERS.indexOf(letters.charAt(index))) & 0xffffff;
    if (index % 4 > 0) bytes[filled++] = (word >> (6 - 2 * (index % 4))) & 255;
  }
  return bytes;
}
