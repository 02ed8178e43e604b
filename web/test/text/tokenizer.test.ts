import { expect, test } from "vitest";

import { readVocabulary } from "../../src/grammar/vocabulary.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { formatOf } from "./tool_formats.js";
import { templateEntry } from "./template_trees.js";
import { NO_TOKENS, byteFallbackTokenizer, byteLevelTokenizer } from "./tokenizers.js";

const JSON_TEXT = byteLevelTokenizer();
const tokenizer = new Tokenizer(JSON_TEXT, NO_TOKENS);

test("tokens without text, and ids without a token, give no text", () => {
  expect(tokenizer.decode([256, 72, 105, 999])).toBe("Hi");
  expect(tokenizer.decode([256])).toBe("");
  expect(tokenizer.decode([])).toBe("");
});

test("spaces before punctuation stay as they are", () => {
  expect(tokenizer.decode(tokenizer.encode("a . b , c 's", false))).toBe("a . b , c 's");
});

test("add_bos_token wins over tokenizer.json", () => {
  const withBos = (add_bos_token: boolean | null): Tokenizer =>
    new Tokenizer(JSON_TEXT, { ...NO_TOKENS, bos_token: "<s>", add_bos_token });
  expect(withBos(null).encode("a")).toEqual([256, 97]);
  expect(withBos(true).encode("a")).toEqual([256, 97]);
  expect(withBos(false).encode("a")).toEqual([97]);
  expect(withBos(false).encode("<s>a", true, false)).toEqual([256, 256, 97]);
  expect(withBos(true).encode("<s>a")).toEqual([256, 60, 115, 62, 97]);
  expect(withBos(false).encode("<s>a")).toEqual([60, 115, 62, 97]);
});

test("a chat is rendered as transformers does, and its special tokens become single ones", () => {
  const chat_template =
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ bos_token }}{{ m.content }}{% endif %}\n{% endfor %}>";
  const chat = new Tokenizer(JSON_TEXT, { ...NO_TOKENS, bos_token: "<s>", ...templateEntry(chat_template) });
  expect(chat.encodeChat([{ role: "user", content: "a" }])).toEqual([256, 97, 62]);
});

test("a chat without a template, and messages that it refuses, are RequestErrors", () => {
  expect(() => tokenizer.encodeChat([{ role: "user", content: "a" }])).toThrow("has no chat template");
  const strict = new Tokenizer(JSON_TEXT, { ...NO_TOKENS, ...templateEntry("{{ raise_exception('no roles') }}") });
  expect(() => strict.encodeChat([{ role: "user", content: "a" }])).toThrow(
    "the chat template refuses these messages: no roles",
  );
  const wrong = [{ role: "user" }] as unknown as readonly { role: string; content: string }[];
  expect(() => strict.encodeChat(wrong)).toThrow("messages[0] must be an object");
});

test("a broken tokenizer, and a template that a browser cannot evaluate, are BundleErrors", () => {
  expect(() => new Tokenizer("{}", NO_TOKENS)).toThrow("tokenizer.json: cannot be loaded");
  const chat = (tree: unknown[] | null) => () => {
    const entry = tree === null ? null : ({ tree, template_sha256: "", content: "text" } as const);
    new Tokenizer(JSON_TEXT, { ...NO_TOKENS, chat_template: "a", chat_tree: entry }).encodeChat([]);
  };
  expect(chat(null)).toThrow("only a server can evaluate");
  expect(chat([{}, [["extends", "b"]]])).toThrow('chat template: the tree has an unknown statement: "extends"');
});

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

test("special tokens that mark tool calls are part of an answer's text, and of its grammar", () => {
  const file = JSON.parse(JSON_TEXT) as { added_tokens: { id: number; content: string; special: boolean }[] };
  const [special] = file.added_tokens.filter((token) => token.special);
  if (special === undefined) throw new Error("no special token");
  const { id, content } = special;
  const tools = { ...formatOf("mistral"), tokens: [content] };
  expect(new Tokenizer(JSON_TEXT, NO_TOKENS).decode([id, 97])).toBe("a");
  expect(new Tokenizer(JSON_TEXT, { ...NO_TOKENS, tools }).decode([id, 97])).toBe(`${content}a`);
  const spec = { vocab_size: 300, eos_token_ids: [] };
  expect(readVocabulary(JSON_TEXT, spec).tokens[id]?.length).toBe(0);
  expect(readVocabulary(JSON_TEXT, { ...spec, spoken: [content] }).tokens[id]?.length).toBe(content.length);
});
