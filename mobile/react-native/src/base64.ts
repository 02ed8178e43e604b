// Base64 (RFC 4648), in which some native modules hand over bytes.

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

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
