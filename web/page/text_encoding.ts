// The text of a file whose encoding nobody names. server_fallback/retrieval/text_encoding.py has the same rule, and
// tests/conformance/text_files.json holds cases of both.

import * as kinds from "../src/shared/file_kinds.js";

const START_BYTES = 16;

/** Other control characters are in no text that a person wrote. */
// oxlint-disable-next-line no-control-regex
const CONTROL = /[\0-\x08\x0e-\x1f\x7f]/;
const META_CHARSET = /<meta[^>]+charset\s*=\s*["']?\s*([\w.:-]+)/i;
const META_BYTES = 1024;

/**
 * The text of these bytes, without a byte order mark; null if they are not text. In this order: UTF-16 with its mark,
 * UTF-8, the encoding that an HTML page names, UTF-16 by its zero bytes, and Windows-1252, which includes Latin-1.
 */
export function decodeText(bytes: Uint8Array, { html = false } = {}): string | null {
  const [first, second] = bytes;
  if ((first === 0xff && second === 0xfe) || (first === 0xfe && second === 0xff)) {
    const text = decoded(bytes, first === 0xff ? "utf-16le" : "utf-16be");
    // The mark of UTF-32 begins with that of UTF-16.
    return text === null || text.includes("\0") ? null : text;
  }
  const text = decoded(bytes, "utf-8");
  if (text !== null && !text.includes("\0")) return text;
  const named = html ? META_CHARSET.exec(decoded(bytes.subarray(0, META_BYTES), "latin1") ?? "")?.[1] : undefined;
  const candidates = [named, utf16Of(bytes), isWestern(bytes) ? "windows-1252" : undefined];
  for (const encoding of candidates) {
    const found = encoding === undefined ? null : decoded(bytes, encoding);
    if (found !== null && !CONTROL.test(found)) return found;
  }
  return null;
}

/** Why bytes of which `decodeText` returns null are not read. */
export function notText(bytes: Uint8Array): string {
  return kinds.notText(bytes.includes(0) && !maybeUtf16(bytes));
}

/** What a file is that is not read as text, and what to do; null if it may be a text. */
export function unreadableKind(name: string, bytes: Uint8Array): string | null {
  return kinds.unreadableKind(name, String.fromCharCode(...bytes.subarray(0, START_BYTES)));
}

/** Whether bytes may be a text in UTF-16 without a mark, of a script whose high bytes are seldom zero, as Japanese. */
function maybeUtf16(bytes: Uint8Array): boolean {
  let zeros = 0;
  for (const byte of bytes) if (byte === 0) zeros++;
  if (zeros * 20 >= bytes.length) return false;
  return ["utf-16le", "utf-16be"].some((encoding) => {
    const found = decoded(bytes, encoding);
    return found !== null && !CONTROL.test(found);
  });
}

/** Null if the bytes are not in this encoding, or if it is unknown. */
function decoded(bytes: Uint8Array, encoding: string): string | null {
  try {
    const decoder = new TextDecoder(encoding, { fatal: true });
    // In one call, Node 20 decodes Windows-1252 as Latin-1.
    return decoder.decode(bytes, { stream: true }) + decoder.decode();
  } catch {
    return null;
  }
}

/** In UTF-16, the high bytes of spaces, digits and Latin letters are zero, and few low bytes are. */
function utf16Of(bytes: Uint8Array): string | undefined {
  if (bytes.length % 2 === 1) return undefined;
  let [even, odd] = [0, 0];
  for (let index = 0; index < bytes.length; index += 2) {
    if (bytes[index] === 0) even++;
    if (bytes[index + 1] === 0) odd++;
  }
  if (Math.max(even, odd) * 20 < bytes.length || Math.min(even, odd) * 10 > Math.max(even, odd)) return undefined;
  return odd > even ? "utf-16le" : "utf-16be";
}

/**
 * Western European words are mostly ASCII letters, and Windows-1252 leaves five bytes undefined. In texts of other
 * single-byte and multibyte encodings, most bytes are above ASCII.
 */
function isWestern(bytes: Uint8Array): boolean {
  let letters = 0;
  let high = 0;
  for (const byte of bytes) {
    if ([0x81, 0x8d, 0x8f, 0x90, 0x9d].includes(byte)) return false;
    if (byte >= 0x80) high++;
    else if ((byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x7a) letters++;
  }
  return high <= letters;
}
