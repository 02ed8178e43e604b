// UTF-8 (RFC 3629). What is no UTF-8 becomes U+FFFD.

export function encodeUtf8(text: string): Uint8Array<ArrayBuffer> {
  const bytes: number[] = [];
  for (const character of text) {
    const given = character.codePointAt(0) ?? 0;
    const code = given >= 0xd800 && given <= 0xdfff ? 0xfffd : given;
    if (code < 0x80) bytes.push(code);
    else if (code < 0x800) bytes.push(0xc0 | (code >> 6), tail(code));
    else if (code < 0x10000) bytes.push(0xe0 | (code >> 12), tail(code >> 6), tail(code));
    else bytes.push(0xf0 | (code >> 18), tail(code >> 12), tail(code >> 6), tail(code));
  }
  return Uint8Array.from(bytes);
}

export function decodeUtf8(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let place = 0; place < bytes.length;) {
    const first = bytes[place] ?? 0;
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
    let taken = 1;
    while (taken < length && ((bytes[place + taken] ?? 0) & 0xc0) === 0x80)
      code = (code << 6) | ((bytes[place + taken++] ?? 0) & 0x3f);
    const isSound = taken === length && code >= least && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    parts.push(isSound ? String.fromCodePoint(code) : "\ufffd");
    place += Math.max(taken, 1);
  }
  return parts.join("");
}

function tail(code: number): number {
  return 0x80 | (code & 0x3f);
}
