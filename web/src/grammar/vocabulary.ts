// Reads the bytes of each token from a tokenizer.json, for grammars and completions.

import { BundleError, RequestError } from "../errors.js";

export interface Vocabulary {
  /** Ids that the model has logits for, those without a token included. */
  readonly size: number;
  readonly eosTokenIds: readonly number[];
  /** A token's bytes by its id; none for special tokens, which are not part of an answer's text. */
  readonly tokens: readonly Uint8Array[];
}

interface TokenizerFile {
  readonly added_tokens?: readonly { readonly id: number; readonly content: string; readonly special: boolean }[];
  readonly decoder?: Part | null;
  readonly model: { readonly vocab: Readonly<Record<string, number>> | readonly (readonly [string, number])[] };
}

interface Part {
  readonly type: string;
  readonly decoders?: readonly Part[];
  readonly pattern?: { readonly String?: string };
  readonly content?: string;
}

export interface VocabularySpec {
  readonly vocab_size: number;
  readonly eos_token_ids: readonly number[];
  /** Added tokens that are part of an answer's text even if they are special. */
  readonly spoken?: readonly string[];
}

const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;

/**
 * Throws RequestError for a tokenizer whose tokens have no bytes of their own, BundleError for a file that is not a
 * tokenizer.
 */
export function readVocabulary(tokenizerJson: string, spec: VocabularySpec): Vocabulary {
  const file = JSON.parse(tokenizerJson) as TokenizerFile;
  const entries = Array.isArray(file.model.vocab)
    ? file.model.vocab.map(([token], id): [string, number] => [token as string, id])
    : Object.entries(file.model.vocab as Readonly<Record<string, number>>);
  if (entries.length === 0)
    throw new BundleError("tokenizer.json: has no tokens; compile the bundle again", { file: "tokenizer.json" });
  const bytesOf = tokenBytes(file.decoder ?? null);
  const tokens: Uint8Array[] = Array.from({ length: spec.vocab_size }, () => new Uint8Array());
  for (const [token, id] of entries) tokens[id] = bytesOf(token);
  const encoder = new TextEncoder();
  for (const { id, content, special } of file.added_tokens ?? [])
    tokens[id] = special && !spec.spoken?.includes(content) ? new Uint8Array() : encoder.encode(content);
  for (const id of spec.eos_token_ids) tokens[id] = new Uint8Array();
  return { size: spec.vocab_size, eosTokenIds: spec.eos_token_ids, tokens: tokens.slice(0, spec.vocab_size) };
}

/** The way in which the decoder converts a token's name to bytes. */
function tokenBytes(decoder: Part | null): (token: string) => Uint8Array {
  const encoder = new TextEncoder();
  const parts = decoder === null ? [] : decoder.type === "Sequence" ? (decoder.decoders ?? []) : [decoder];
  const has = (type: string): boolean => parts.some((part) => part.type === type);
  if (has("WordPiece") || has("BPEDecoder") || has("CTC")) {
    const type = parts.map((part) => part.type).join(", ");
    throw new RequestError(
      `A grammar needs a tokenizer whose tokens are bytes; this model's decoder is ${type}, which puts spaces ` +
        "between words",
    );
  }
  if (has("ByteLevel")) {
    const byteOf = new Map(byteCharacters().map((character, byte) => [character, byte]));
    return (token) => {
      const bytes = Array.from(token, (character) => byteOf.get(character));
      return bytes.every((byte) => byte !== undefined) ? Uint8Array.from(bytes) : encoder.encode(token);
    };
  }
  const spaces = parts.flatMap(({ type, content, pattern }) => {
    if (type === "Metaspace") return ["▁"];
    return type === "Replace" && content === " " ? [pattern?.String ?? ""] : [];
  });
  const byteFallback = has("ByteFallback");
  return (token) => {
    const byte = byteFallback ? BYTE_TOKEN.exec(token)?.[1] : undefined;
    if (byte !== undefined) return Uint8Array.of(Number.parseInt(byte, 16));
    return encoder.encode(
      spaces.filter((space) => space !== "").reduce((text, space) => text.replaceAll(space, " "), token),
    );
  };
}

/**
 * The characters that byte-level tokenizers write for bytes: printable bytes as they are, the others from U+0100.
 * Radford et al. 2019.
 */
function byteCharacters(): readonly string[] {
  const printable = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}
