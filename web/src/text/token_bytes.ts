// Tokens as bytes: a token's name in tokenizer.json flows in, the bytes that it stands for flow out.

const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;

/** How a tokenizer writes bytes in the names of its tokens. */
export type ByteSpelling = "byte_level" | "byte_fallback";

/** Throws nothing: a tokenizer.json without a ByteLevel decoder spells characters as they are, with "▁" for a space. */
export function byteSpelling(tokenizerJson: unknown): ByteSpelling {
  const { decoder } = tokenizerJson as { decoder?: { type?: string; decoders?: readonly { type?: string }[] } | null };
  return [decoder, ...(decoder?.decoders ?? [])].some((part) => part?.type === "ByteLevel") ? "byte_level" : "byte_fallback";
}

/** ``added``: a token that is matched in the text itself, so that its name is its text. */
export function tokenBytes(name: string, spelling: ByteSpelling, added: boolean): Uint8Array {
  if (added) return new TextEncoder().encode(name);
  if (spelling === "byte_fallback") {
    const byte = BYTE_TOKEN.exec(name)?.[1];
    return byte === undefined ? new TextEncoder().encode(name.replaceAll("▁", " ")) : Uint8Array.of(parseInt(byte, 16));
  }
  return Uint8Array.from(Array.from(name).flatMap(byteOf));
}

// GPT-2 writes a byte that is no printable character of Latin-1 as the next free character from U+0100 on.
function byteOf(character: string): readonly number[] {
  const code = character.codePointAt(0) ?? 0;
  if (isPrintable(code)) return [code];
  if (code >= 0x100 && code < 0x100 + HIDDEN.length) return [HIDDEN[code - 0x100] ?? 0];
  return [...new TextEncoder().encode(character)];
}

const isPrintable = (byte: number): boolean => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);

const HIDDEN: readonly number[] = Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !isPrintable(byte));
