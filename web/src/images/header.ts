// What the first bytes of a picture's file say: its format and size, and whether it is animated. They are read before
// anything is decoded, because a small file may claim a picture that fits into no memory.

import { RequestError } from "../errors.js";
import { unreadablePicture } from "../shared/images/kind.js";
import type { Size } from "../shared/images/layout.js";

export interface Header extends Size {
  readonly animated: boolean;
}

/** Throws RequestError for files that are no pictures, and those of formats that are not supported. */
export function readHeader(bytes: Uint8Array): Header {
  const start = String.fromCharCode(...bytes.subarray(0, 1024));
  const reason = unreadablePicture(start);
  if (reason !== null) throw new RequestError(`images: the picture ${reason}`);
  const read = READERS.find(([head]) => head.test(start))?.[1];
  if (read === undefined)
    throw new RequestError("images: the picture has an unknown format; send a PNG, JPEG, WebP, GIF, BMP or AVIF file");
  try {
    const header = read(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength));
    if (header.width > 0 && header.height > 0) return header;
  } catch (error) {
    // The file ends before what its parts claim.
    if (!(error instanceof RangeError)) throw error;
  }
  throw damaged();
}

export const damaged = (cause?: unknown): RequestError =>
  new RequestError("images: the picture is damaged or incomplete; send it again", {}, { cause });

type Reader = (view: DataView) => Header;

/* oxlint-disable no-control-regex -- the first bytes of files */
const READERS: readonly (readonly [RegExp, Reader])[] = [
  [/^\x89PNG\r\n\x1a\n/, ofPng],
  [/^\xff\xd8\xff/, ofJpeg],
  [/^RIFF....WEBP/s, ofWebp],
  [/^GIF8[79]a/, ofGif],
  [/^BM/, ofBmp],
  [/^....ftyp(?:avif|mif1)/s, ofAvif],
];
/* oxlint-enable no-control-regex */

const textAt = (view: DataView, at: number, length = 4): string =>
  String.fromCharCode(...Array.from({ length }, (_, index) => view.getUint8(at + index)));

/** Chunks before the pixels say that there are several pictures. */
function ofPng(view: DataView): Header {
  let animated = false;
  for (let at = 8; textAt(view, at + 4) !== "IDAT"; at += 12 + view.getUint32(at))
    animated ||= textAt(view, at + 4) === "acTL";
  return { width: view.getUint32(16), height: view.getUint32(20), animated };
}

/** Segments up to that of the frame. */
function ofJpeg(view: DataView): Header {
  for (let at = 2; ;) {
    if (view.getUint8(at) !== 0xff) throw damaged();
    const marker = view.getUint8(at + 1);
    // All markers of frames but those of tables between them.
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
      return { height: view.getUint16(at + 5), width: view.getUint16(at + 7), animated: false };
    const hasLength = marker !== 0xff && marker !== 0x01 && (marker < 0xd0 || marker > 0xd8);
    at += marker === 0xff ? 1 : hasLength ? 2 + view.getUint16(at + 2) : 2;
  }
}

function ofWebp(view: DataView): Header {
  const uint24 = (at: number): number => view.getUint16(at, true) + view.getUint8(at + 2) * 2 ** 16;
  switch (textAt(view, 12)) {
    case "VP8X":
      return { width: uint24(24) + 1, height: uint24(27) + 1, animated: (view.getUint8(20) & 2) !== 0 };
    case "VP8L": {
      const bits = view.getUint32(21, true);
      return { width: (bits & 0x3fff) + 1, height: ((bits >> 14) & 0x3fff) + 1, animated: false };
    }
    case "VP8 ":
      return { width: view.getUint16(26, true) & 0x3fff, height: view.getUint16(28, true) & 0x3fff, animated: false };
    default:
      throw damaged();
  }
}

/** Blocks up to the second picture. */
function ofGif(view: DataView): Header {
  const tableBytes = (flags: number): number => (flags & 0x80 ? 3 * 2 ** ((flags & 7) + 1) : 0);
  const size = { width: view.getUint16(6, true), height: view.getUint16(8, true) };
  let [at, pictures] = [13 + tableBytes(view.getUint8(10)), 0];
  while (pictures < 2 && at < view.byteLength && view.getUint8(at) !== 0x3b) {
    const isPicture = view.getUint8(at) === 0x2c;
    if (!isPicture && view.getUint8(at) !== 0x21) throw damaged();
    if (isPicture) pictures++;
    // The next block follows parts with their lengths, the last of which is 0.
    at += isPicture ? 11 + tableBytes(view.getUint8(at + 9)) : 2;
    while (view.getUint8(at) !== 0) at += 1 + view.getUint8(at);
    at++;
  }
  return { ...size, animated: pictures > 1 };
}

function ofBmp(view: DataView): Header {
  const isOld = view.getUint32(14, true) === 12;
  const at = (index: number): number =>
    isOld ? view.getUint16(18 + index * 2, true) : view.getInt32(18 + index * 4, true);
  // A negative height means that the first row is the top one.
  return { width: at(0), height: Math.abs(at(1)), animated: false };
}

/** The largest size of a part: parts may be tiles of the picture, or its transparency. */
function ofAvif(view: DataView): Header {
  let size = { width: 0, height: 0 };
  const end = Math.min(view.byteLength, 2 ** 16) - 16;
  for (let at = 0; at < end; at++)
    if (view.getUint32(at) === 0x69737065) {
      const [width, height] = [view.getUint32(at + 8), view.getUint32(at + 12)];
      if (width * height > size.width * size.height) size = { width, height };
    }
  return { ...size, animated: false };
}
