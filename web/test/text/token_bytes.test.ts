import { expect, test } from "vitest";

import { Tokenizer } from "../../src/text/tokenizer.js";
import { NO_TOKENS, byteFallbackTokenizer, byteLevelTokenizer } from "./tokenizers.js";

test("a byte-level tokenizer's tokens are the bytes that its characters stand for", () => {
  const tokenizer = new Tokenizer(byteLevelTokenizer(), NO_TOKENS);
  for (let byte = 0; byte < 256; byte++) expect(tokenizer.tokenBytes(byte)).toEqual(Uint8Array.of(byte));
});

test("a byte-fallback tokenizer's tokens are bytes, spaces and characters", () => {
  const tokenizer = new Tokenizer(byteFallbackTokenizer(), NO_TOKENS);
  for (let byte = 0; byte < 256; byte++) expect(tokenizer.tokenBytes(byte)).toEqual(Uint8Array.of(byte));
  expect([256, 262].map((id) => new TextDecoder().decode(tokenizer.tokenBytes(id) ?? undefined))).toEqual([" ", "é"]);
});

test("a special token is its name, and an id without a token is null", () => {
  const tokenizer = new Tokenizer(byteLevelTokenizer(), NO_TOKENS);
  expect(new TextDecoder().decode(tokenizer.tokenBytes(257) ?? undefined)).toBe("<think>");
  expect(tokenizer.tokenBytes(999)).toBeNull();
});

test.each([byteLevelTokenizer(), byteFallbackTokenizer()])("the bytes of a text's tokens are the text's", (json) => {
  const tokenizer = new Tokenizer(json, NO_TOKENS);
  const bytes = tokenizer.encode("né 🦊!", false).flatMap((id) => [...(tokenizer.tokenBytes(id) ?? [])]);
  expect(new TextDecoder().decode(Uint8Array.from(bytes)).trimStart()).toBe("né 🦊!");
});
