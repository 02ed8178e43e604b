import { createHash, randomBytes } from "node:crypto";

import type * as FileSystem58 from "expo-file-system";
import type * as FileSystem54 from "expo-file-system-54";
import { expect, test } from "vitest";

import type { ExpoFileSystem } from "../src/expo_files.js";
import { expoFiles } from "../src/expo_files.js";
import type { Globals } from "../src/fill_in.js";
import { fillIn } from "../src/fill_in.js";
import { decodeBase64, encodeBase64, rnfsFiles } from "../src/rnfs_files.js";
import { Sha256 } from "../src/sha256.js";
import { decodeUtf8, encodeUtf8 } from "../src/utf8.js";

test.each([0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000])(
  "SHA-256 of %i bytes, in pieces of any length, is Node's",
  (length) => {
    const bytes = randomBytes(length);
    for (const piece of [1, 7, 64, 100]) {
      const hash = new Sha256();
      for (let offset = 0; offset < length; offset += piece) hash.update(bytes.subarray(offset, offset + piece));
      expect(hash.digest()).toBe(createHash("sha256").update(bytes).digest("hex"));
    }
  },
);

test("UTF-8 is encoded and decoded like TextEncoder and TextDecoder, including invalid bytes", () => {
  const texts = ["", "a", "é", "€", "𝄞", "\ud834 alone", "日本語 😀", "\u0000"];
  for (const text of texts) expect([...encodeUtf8(text)]).toEqual([...new TextEncoder().encode(text)]);
  const damaged = [[0x80], [0xc0, 0x80], [0xe2, 0x82], [0xe2, 0x82, 0x41], [0xff, 0x41], [0x41, 0xc3]];
  for (const bytes of [
    ...texts.map((text) => new TextEncoder().encode(text)),
    ...damaged.map((each) => Uint8Array.from(each)),
  ]) {
    // Both replace invalid sequences; the number of replacement characters may differ.
    const marks = (text: string): string => text.replace(/\ufffd+/g, "\ufffd");
    expect(marks(decodeUtf8(bytes))).toBe(marks(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes)));
  }
});

test("base64 is encoded and decoded like in Node", () => {
  for (const length of [0, 1, 2, 3, 4, 5, 100]) {
    const bytes = Uint8Array.from(randomBytes(length));
    expect(encodeBase64(bytes)).toBe(Buffer.from(bytes).toString("base64"));
    expect([...decodeBase64(Buffer.from(bytes).toString("base64"))]).toEqual([...bytes]);
  }
});

test("missing functions are added, and existing ones stay", () => {
  class Signal {
    aborted = false;
    reason: unknown = undefined;
    readonly #listeners: (() => void)[] = [];
    addEventListener(_: string, listener: () => void): void {
      this.#listeners.push(listener);
    }
    fire(): void {
      this.aborted = true;
      for (const listener of this.#listeners) listener();
    }
  }
  class Controller {
    readonly signal = new Signal();
    abort(): void {
      this.signal.fire();
    }
  }
  const lacking = { AbortSignal: Signal, AbortController: Controller } as unknown as Globals & {
    crypto: { randomUUID(): string; getRandomValues(words: Uint32Array): Uint32Array };
    AbortSignal: { any(signals: readonly Signal[]): Signal & { throwIfAborted(): void } };
    TextDecoder: new () => { decode(bytes: Uint8Array): string };
  };
  fillIn(lacking);
  expect(lacking.crypto.randomUUID()).toMatch(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  expect(lacking.crypto.getRandomValues(new Uint32Array(4)).some((word) => word > 0)).toBe(true);
  expect(new lacking.TextDecoder().decode(Uint8Array.of(104, 105))).toBe("hi");
  const [one, other] = [new Signal(), new Signal()];
  const either = lacking.AbortSignal.any([one, other]);
  expect(() => {
    either.throwIfAborted();
  }).not.toThrow();
  other.fire();
  expect(() => {
    either.throwIfAborted();
  }).toThrow("aborted");
  const whole = { TextDecoder, TextEncoder, AbortSignal, AbortController } as unknown as Globals;
  fillIn(whole);
  expect([whole.TextDecoder, whole.AbortSignal]).toEqual([TextDecoder, AbortSignal]);
});

/** A file system in memory with the interfaces of both packages. */
/** The types of both generations of the package are those that the adapter accepts. */
type Fits<Package extends ExpoFileSystem> = Package;
type Expo54 = Fits<typeof FileSystem54>;
type Expo58 = Fits<typeof FileSystem58>;

/** ``sdk``: since Expo SDK 58, moving, reading and writing end later, and fail if the file was closed before. */
function memory(sdk: 54 | 58 = 58): {
  readonly rnfs: Parameters<typeof rnfsFiles>[0];
  readonly expo: Parameters<typeof expoFiles>[0];
} {
  const files = new Map<string, Uint8Array<ArrayBuffer>>();
  const take = (path: string): Uint8Array<ArrayBuffer> => files.get(path) ?? new Uint8Array();
  const join = (path: string, bytes: Uint8Array): void =>
    void files.set(path, Uint8Array.from([...take(path), ...bytes]));
  const timed = <T>(work: () => T): T | Promise<T> => (sdk === 54 ? work() : Promise.resolve().then(work));
  class ExpoFile {
    constructor(readonly uri: string) {}
    get exists(): boolean {
      return files.has(this.uri);
    }
    get size(): number {
      return take(this.uri).length;
    }
    create(): void {
      files.set(this.uri, new Uint8Array());
    }
    move(to: ExpoFile): ReturnType<InstanceType<Expo54["File"] | Expo58["File"]>["move"]> {
      const { uri } = this;
      return timed(() => {
        files.set(to.uri, take(uri));
        files.delete(uri);
      });
    }
    delete(): void {
      files.delete(this.uri);
    }
    open(): ReturnType<InstanceType<Parameters<typeof expoFiles>[0]["File"]>["open"]> {
      const { uri } = this;
      let isOpen = true;
      const whileOpen = <T>(work: () => T): T | Promise<T> =>
        timed(() => {
          if (!isOpen) throw new Error("the file is closed");
          return work();
        });
      return {
        offset: 0,
        size: take(uri).length,
        readBytes(length) {
          return whileOpen(() => take(uri).slice(this.offset ?? 0, (this.offset ?? 0) + length));
        },
        writeBytes: (bytes) =>
          whileOpen(() => {
            join(uri, bytes);
          }),
        close: () => {
          isOpen = false;
        },
      };
    }
  }
  class ExpoFolder {
    readonly exists = false;
    create(): void {
      // A folder exists if it has files.
    }
    delete(): void {
      // See above.
    }
  }
  return {
    rnfs: {
      DocumentDirectoryPath: "/documents",
      exists: (path) => Promise.resolve(files.has(path)),
      stat: (path) => Promise.resolve({ size: String(take(path).length) }),
      read: (path, length, position) => Promise.resolve(encodeBase64(take(path).subarray(position, position + length))),
      appendFile: async (path, contents) => {
        await Promise.resolve();
        join(path, decodeBase64(contents));
      },
      mkdir: () => Promise.resolve(),
      moveFile: async (from, to) => {
        await new ExpoFile(from).move(new ExpoFile(to));
      },
      unlink: (path) => Promise.resolve(files.delete(path)),
      hash: (path) => Promise.resolve(createHash("sha256").update(take(path)).digest("hex")),
      getFSInfo: () => Promise.resolve({ freeSpace: 5 }),
    },
    expo: {
      File: ExpoFile,
      Directory: ExpoFolder,
      Paths: { document: { uri: "file:///documents/" }, availableDiskSpace: 5 },
    },
  };
}

test.each([
  ["expo-file-system of SDK 54", () => expoFiles(memory(54).expo), "file:///documents"],
  ["expo-file-system of SDK 58", () => expoFiles(memory(58).expo), "file:///documents"],
  ["react-native-fs", () => rnfsFiles(memory().rnfs), "/documents"],
] as const)("%s: the adapter reports the files that were written", async (_, make, documents) => {
  const files = make();
  expect(files.documents).toBe(documents);
  const path = `${files.documents}/a`;
  expect(await files.size(path)).toBeNull();
  await files.makeFolder(files.documents);
  await files.append(path, Uint8Array.of(1, 2, 3));
  await files.append(path, Uint8Array.of(4, 5));
  expect([await files.size(path), [...(await files.read(path, 1, 3))], await files.freeBytes()]).toEqual([
    5,
    [2, 3, 4],
    5,
  ]);
  await files.append(`${path}b`, Uint8Array.of(9));
  await files.move(path, `${path}b`);
  expect([await files.size(path), await files.size(`${path}b`)]).toEqual([null, 5]);
  await files.remove(`${path}b`);
  await files.remove(`${path}b`);
  expect(await files.size(`${path}b`)).toBeNull();
});
