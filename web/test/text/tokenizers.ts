// Two small tokenizers with a token for each byte, of the two kinds that language models use.

import type { TokenizerEntry } from "../../src/runtime/manifest.js";

export const NO_TOKENS: TokenizerEntry = {
  file: "tokenizer.json",
  chat_template: null,
  chat_tree: null,
  bos_token: null,
  eos_token: null,
  pad_token: null,
  unk_token: null,
  add_bos_token: null,
  tools: null,
};

const ADDED = { single_word: false, lstrip: false, rstrip: false, normalized: false };

/** Token i is byte i, then "<s>" (256) and "<think>" (257), of which only the first is special. */
export function byteLevelTokenizer(): string {
  const vocab = Object.fromEntries(byteCharacters().map((character, byte) => [character, byte]));
  return JSON.stringify({
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: [
      { id: 256, content: "<s>", special: true, ...ADDED },
      { id: 257, content: "<think>", special: false, ...ADDED },
    ],
    normalizer: null,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: {
      type: "TemplateProcessing",
      single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
      pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 1 } }],
      special_tokens: { "<s>": { id: "<s>", ids: [256], tokens: ["<s>"] } },
    },
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: "BPE", vocab, merges: [] },
  });
}

/** Token i is byte i, then a few letters; text starts with "▁" for a space, as in llama 2. */
export function byteFallbackTokenizer(): string {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
  const vocab = Object.fromEntries([...bytes, "▁", "a", "b", "c", "n", "!", "é"].map((token, id) => [token, id]));
  return JSON.stringify({
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: [],
    normalizer: {
      type: "Sequence",
      normalizers: [
        { type: "Prepend", prepend: "▁" },
        { type: "Replace", pattern: { String: " " }, content: "▁" },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: "Sequence",
      decoders: [
        { type: "Replace", pattern: { String: "▁" }, content: " " },
        { type: "ByteFallback" },
        { type: "Fuse" },
        { type: "Strip", content: " ", start: 1, stop: 0 },
      ],
    },
    model: { type: "BPE", vocab, merges: [], unk_token: null, fuse_unk: true, byte_fallback: true },
  });
}

/** The characters by which byte-level tokenizers write bytes: printable ones as they are, the others from U+0100 on. */
function byteCharacters(): readonly string[] {
  const printable = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}
