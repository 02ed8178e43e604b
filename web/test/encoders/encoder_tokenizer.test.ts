// tests/conformance/encoder_tokenizers.json: what the tokenizers library makes of texts, by tests/encoder_tokenizers.py.

import { readFileSync } from "node:fs";

import { describe, expect, test } from "vitest";

import { EncoderTokenizer } from "../../src/encoders/tokenizer/encoder_tokenizer.js";
import { PATTERNS } from "../../src/encoders/tokenizer/stable_tokens.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { runs } from "../exhaustive.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";

interface Vectors {
  readonly texts: readonly string[];
  readonly patterns: readonly string[];
  readonly pairs: readonly (readonly [string, string])[];
  readonly unknown: Readonly<Record<string, string>>;
  readonly tokenizers: Readonly<Record<string, { readonly normalizer: object; readonly pre_tokenizer: object }>>;
  readonly expected: Readonly<
    Record<
      string,
      {
        readonly texts: readonly (readonly [ids: number[], places: [number, number][]] | null)[];
        readonly pairs: readonly (readonly [ids: number[], types: number[]])[];
      }
    >
  >;
}

const VECTORS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/encoder_tokenizers.json", import.meta.url), "utf8"),
) as Vectors;

function open(json: string, unk_token: string | null = null): EncoderTokenizer {
  const entry = { ...NO_TOKENS, unk_token };
  return new EncoderTokenizer(json, entry, new Tokenizer(json, entry));
}

describe.each(Object.keys(VECTORS.tokenizers))("%s", (name) => {
  const tokenizer = open(JSON.stringify(VECTORS.tokenizers[name]), VECTORS.unknown[name]);
  const expected = VECTORS.expected[name];

  test.each(VECTORS.texts.map((text, index) => [text, index] as const))("the tokens of %j", (text, index) => {
    const known = expected?.texts[index] ?? null;
    if (known === null) {
      expect(() => tokenizer.tokens(text)).toThrow("spells a control token");
      return;
    }
    const { ids, spans } = tokenizer.joined(tokenizer.tokens(text), null);
    expect(ids).toEqual(known[0]);
    // The places of other byte-pair tokens are not known.
    if (name === "qwen" || name === "gemma") return;
    expect(spans?.map((span) => span ?? [0, 0])).toEqual(known[1]);
  });

  test("a long text is tokenized only at its beginning, with the tokens of the whole", () => {
    const parts = [...VECTORS.texts.filter((text) => !text.includes("[CLS]")), "xxx", "日本語", "!", "hello world "];
    let seed = 1;
    const random = (most: number): number => (seed = (seed * 48271) % 2147483647) % most;
    let beginnings = 0;
    for (let round = 0; round < runs(10, 60); round++) {
      const some = Array.from({ length: 1 + random(4) }, () => parts[random(parts.length)]);
      const text = some.join(random(2) === 0 ? " " : "").repeat(1 + random(20));
      const count = 1 + random(20);
      const whole = tokenizer.tokens(text);
      const found = tokenizer.tokens(text, count);
      beginnings += Number(found.isBeginning === true);
      expect(found.ids.slice(0, count + 1)).toEqual(whole.ids.slice(0, count + 1));
      if (whole.spans === null) continue;
      expect(found.spans?.slice(0, count)).toEqual(whole.spans.slice(0, count));
      expect(tokenizer.beginning(text, count)).toBe(text.slice(0, whole.spans[count]?.[0]));
    }
    expect(beginnings).toBeGreaterThan(3);
  });

  const isBert = name.startsWith("bert") || name === "mpnet";
  const isBytePair = ["roberta", "qwen", "gemma"].includes(name);
  test.each([
    ...["a ", "hello, world. ", "f(x, y) ", "日本語中文"],
    // Two marks may be a part of MPNet's "</s>".
    ...(name === "mpnet" ? [] : ["!"]),
    // ALBERT's normalizer changes the number of characters of a long word with accents.
    ...(isBert ? ["a.b_"] : ["ab", "1", "🦊👍", ...(name === "albert" ? [] : ["é"])]),
    ...(isBytePair ? ["龘", "\u200d", " ", "\n", "日AA", "a!'ll"] : []),
  ])("of many %j, no more is read than a context may need", (text) => {
    const { ids, isBeginning } = tokenizer.tokens(text.repeat(100_000 / text.length), 256);
    expect(isBeginning).toBe(true);
    expect(ids.length).toBeGreaterThan(256);
    expect(ids.length).toBeLessThan(4 * 16 * 256);
  });

  test("pairs in one sequence", () => {
    const found = VECTORS.pairs.map(([first, second]) => {
      const { ids, types } = tokenizer.joined(tokenizer.tokens(first), tokenizer.tokens(second));
      return [ids, types];
    });
    expect(found).toEqual(expected?.pairs);
  });

  test("the beginning of a text has its first tokens", () => {
    if (name === "gemma") return;
    // A byte-pair token may begin in the middle of a character, which is left out.
    const text = isBytePair ? "Hello,world!" : "Hello, world! 日本語";
    const { ids } = tokenizer.tokens(text);
    for (let count = 1; count <= ids.length; count++)
      expect(tokenizer.tokens(tokenizer.beginning(text, count)).ids.length).toBeLessThanOrEqual(count);
    expect(tokenizer.beginning(text, 1000)).toBe(text);
  });
});

test.each([
  ["normalizer", { type: "Nmt" }, "normalizer Nmt is not supported"],
  ["normalizer", { type: "Replace", pattern: { Regex: "\\d+" }, content: "0" }, "of a Replace is not supported"],
  ["normalizer", { type: "Precompiled", precompiled_charsmap: "AAAA" }, "precompiled_charsmap is damaged"],
  ["pre_tokenizer", { type: "FixedLength", length: 3 }, "pre-tokenizer FixedLength is not supported"],
  ["post_processor", { type: "Sequence", processors: [{ type: "X" }] }, "post-processor X is not supported"],
])("a %s that is not known is refused by name: %j", (part, value, message) => {
  const json = VECTORS.tokenizers["bert-cased"];
  const sound = new Tokenizer(JSON.stringify(json), NO_TOKENS);
  expect(() => new EncoderTokenizer(JSON.stringify({ ...json, [part]: value }), NO_TOKENS, sound)).toThrow(message);
});

test("the patterns whose words do not depend on far text are those of the compiler", () => {
  expect(new Set(PATTERNS)).toEqual(new Set(VECTORS.patterns));
});

test("half of a surrogate pair is refused", () => {
  expect(() => open(byteLevelTokenizer()).tokens("a\ud83e")).toThrow("half of a surrogate pair");
});

test("add_bos_token wins over tokenizer.json", () => {
  const json = byteLevelTokenizer();
  const joined = (add_bos_token: boolean | null) => {
    const entry = { ...NO_TOKENS, bos_token: "<s>", add_bos_token };
    const tokenizer = new EncoderTokenizer(json, entry, new Tokenizer(json, entry));
    return tokenizer.joined(tokenizer.tokens("a"), null).ids;
  };
  expect([null, true, false].map(joined)).toEqual([[256, 97], [256, 97], [97]]);
});
