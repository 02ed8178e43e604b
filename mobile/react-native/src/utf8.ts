// Encodes and decodes UTF-8 (RFC 3629). Invalid sequences become U+FFFD.

export function encodeUtf8(text: string): Uint8Array<ArrayBuffer> {
  const bytes: number[] = [];
  for (const character of text) {
    const point = character.codePointAt(0) ?? 0;
    const code = point >= 0xd800 && point <= 0xdfff ? 0xfffd : point;
    if (code < 0x80) bytes.push(code);
    else if (code < 0x800) bytes.push(0xc0 | (code >> 6), tail(code));
    else if (code < 0x10000) bytes.push(0xe0 | (code >> 12), tail(code >> 6), tail(code));
    else bytes.push(0xf0 | (code >> 18), tail(code >> 12), tail(code >> 6), tail(code));
  }
  return Uint8Array.from(bytes);
}

export function decodeUtf8(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let offset = 0; offset < bytes.length;) {
    const first = bytes[offset] ?? 0;
    const [length, least] =
      first < 0x80
        ? [1, 0]
        : first < 0xc2
          ? [0, 0]
          : first < 0xe0
            ? [2, 0x80]
            : first < 0xf0
              ? [3, 0x800]
              : first < 0xf5
                ? [4, 0x10000]
                : [0, 0];
    let code = length === 1 ? first : first & (0x7f >> length);
    let count = 1;
    while (count < length && ((bytes[offset + count] ?? 0) & 0xc0) === 0x80)
      code = (code << 6) | ((bytes[offset + count++] ?? 0) & 0x3f);
    const isValid = count === length && code >= least && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    parts.push(isValid ? String.fromCodePoint(code) : "\ufffd");
    offset += Math.max(count, 1);
  }
  return parts.join("");
}

function tail(code: number): number {
  return 0x80 | (code & 0x3f);
}
