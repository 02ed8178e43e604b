// The headers of pictures' files, and pixels that need no decoder. Chromium decodes the same files in
// tests/web/test_images.py.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { DeviceError, RequestError } from "../../src/errors.js";
import { decodeImage } from "../../src/images/decode.js";
import { readHeader } from "../../src/images/header.js";

interface File {
  readonly kind: string;
  readonly data: string;
  readonly width?: number;
  readonly height?: number;
  readonly reason?: string;
}

const FILES = Object.entries(
  JSON.parse(readFileSync("../tests/conformance/image_files.json", "utf8")) as Record<string, File>,
).map(([name, file]) => [name, file, new Uint8Array(Buffer.from(file.data, "base64"))] as const);
const PICTURES = FILES.filter(([, { kind }]) => kind !== "refused");

test.each(PICTURES)("the size is known before a file is decoded: %s", (_, { width, height }, bytes) => {
  expect(readHeader(bytes)).toEqual({ width, height, animated: false });
});

test.each(FILES.filter(([, { kind }]) => kind === "refused"))(
  "a file is refused by its header: %s",
  (_, file, bytes) => {
    const read = decodeImage(new Blob([bytes]));
    // Node decodes none, so damaged pixels are beyond its reach.
    if (file.reason === "damaged or incomplete") return expect(read).rejects.toThrow();
    return expect(read).rejects.toThrow(file.reason);
  },
);

test("a header that ends too soon is refused, and never read beyond its end", () => {
  for (const [, , bytes] of PICTURES)
    for (let length = 0; length < bytes.length; length++)
      try {
        const { width, height } = readHeader(bytes.slice(0, length));
        expect(width * height).toBeGreaterThan(0);
      } catch (error) {
        expect(error).toBeInstanceOf(RequestError);
      }
});

test("a damaged header is read or refused", () => {
  // A generator of numbers that is the same everywhere (xorshift).
  let state = 1;
  const below = (most: number): number => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % most;
  };
  for (const [, , bytes] of FILES)
    for (let round = 0; round < 200 && bytes.length > 0; round++) {
      const changed = bytes.slice(0, 1 + below(bytes.length));
      for (let change = below(8); change >= 0; change--) changed[below(changed.length)] = below(256);
      try {
        const { width, height } = readHeader(changed);
        expect(width * height).toBeGreaterThan(0);
      } catch (error) {
        expect(error).toBeInstanceOf(RequestError);
      }
    }
});

test("pixels of three or four bytes need no decoder", async () => {
  const expected = { width: 1, height: 2, data: Uint8Array.of(1, 2, 3, 4, 5, 6) };
  expect(await decodeImage(expected)).toEqual(expected);
  // Transparent ones keep their colours.
  expect(await decodeImage({ ...expected, data: Uint8ClampedArray.of(1, 2, 3, 0, 4, 5, 6, 255) })).toEqual(expected);
  await expect(decodeImage({ ...expected, data: new Uint8Array(5) })).rejects.toThrow("5 bytes are not 3 or 4");
  await expect(decodeImage({ ...expected, width: 0, data: new Uint8Array() })).rejects.toThrow("has no pixels");
  await expect(decodeImage(expected, { maxPixels: 1 })).rejects.toThrow("1 x 2 pixels, and at most 1 are allowed");
});

test("where nothing decodes files, an error says what to pass", async () => {
  const [, , png] = PICTURES[0] ?? [];
  const address = `data:image/png;base64,${Buffer.from(png ?? []).toString("base64")}`;
  await expect(decodeImage(address)).rejects.toThrow(DeviceError);
  await expect(decodeImage("data:image/png;base64,*")).rejects.toThrow(RequestError);
});

test("an aborted signal ends it with its reason", async () => {
  const reason = new Error("enough");
  const raw = { width: 1, height: 1, data: new Uint8Array(3) };
  await expect(decodeImage(raw, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
});
