// The file system of @dr.pogodin/react-native-fs and of react-native-fs, which have the same functions. Their native
// modules exchange bytes as base64 (RFC 4648).

import type { FileSystem } from "./file_system.js";

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** The part of the package that is used. */
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
  for (let offset = 0; offset < bytes.length; offset += 3) {
    const word = ((bytes[offset] ?? 0) << 16) | ((bytes[offset + 1] ?? 0) << 8) | (bytes[offset + 2] ?? 0);
    const characters = [18, 12, 6, 0].map((shift) => ALPHABET.charAt((word >> shift) & 63));
    const used = Math.min(3, bytes.length - offset) + 1;
    parts.push(characters.slice(0, used).join("").padEnd(4, "="));
  }
  return parts.join("");
}

export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  const characters = text.replace(/=+$/, "");
  const bytes = new Uint8Array(Math.floor((characters.length * 3) / 4));
  let word = 0;
  let filled = 0;
  for (let index = 0; index < characters.length; index++) {
    word = ((word << 6) | ALPHABET.indexOf(characters.charAt(index))) & 0xffffff;
    if (index % 4 > 0) bytes[filled++] = (word >> (6 - 2 * (index % 4))) & 255;
  }
  return bytes;
}
