import { expect, test } from "vitest";

import { StableTokens } from "../../src/encoders/tokenizer/stable_tokens.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";

const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/**
 * With merges of neighbours in the alphabet, later ones first, of which each excludes the one before: the tokens of a
 * word depend on its end, however long it is.
 */
function opened(changes: object = {}, model: object = {}): { tokenizer: Tokenizer; stable: StableTokens | null } {
  const pairs = Array.from(LETTERS.slice(1), (letter, index) => [LETTERS[index] ?? "", letter]).toReversed();
  const json = JSON.parse(byteLevelTokenizer()) as { model: { vocab: Record<string, number> } };
  pairs.forEach((pair, index) => (json.model.vocab[pair.join("")] = 258 + index));
  const made = {
    ...json,
    added_tokens: [],
    post_processor: null,
    ...changes,
    model: { ...json.model, merges: pairs, ...model },
  };
  const tokenizer = new Tokenizer(JSON.stringify(made), NO_TOKENS);
  return { tokenizer, stable: StableTokens.of(made as never, tokenizer) };
}

test("tokens that depend on the end of a long word are not stable, all others are", () => {
  const { tokenizer, stable } = opened();
  let most = 0;
  for (let start = 0; start < 20; start++) {
    const letters = LETTERS.slice(start).repeat(3);
    for (let length = 25; length < 60; length++) {
      const ids = tokenizer.encode(letters.slice(0, length), false);
      const count = stable?.count(ids) ?? NaN;
      most = Math.max(most, count);
      for (let longer = length; longer < length + 9; longer++) {
        const whole = tokenizer.encode(letters.slice(0, longer), false);
        expect(whole.slice(0, count)).toEqual(ids.slice(0, count));
      }
    }
  }
  expect(most).toBeGreaterThan(10);
});

test("a cut may be inside of a long added token, and tokens behind an added one are counted", () => {
  const content = "<|a_long_name_of_a_token_that_marks_a_turn|>";
  const { tokenizer, stable } = opened({ added_tokens: [{ id: 1000, content, special: false }] });
  const text = `a${content}${"ab c".repeat(99)}${content}`;
  for (let end = text.length - content.length; end < text.length; end++) {
    const ids = tokenizer.encode(text.slice(0, end), false);
    const count = stable?.count(ids) ?? NaN;
    expect(count).toBeGreaterThan(10);
    expect(tokenizer.encode(text, false).slice(0, count)).toEqual(ids.slice(0, count));
  }
});

test.each([
  ["\n" + " ".repeat(400), "\nb", null],
  ["\n" + " ".repeat(400), "b", 401],
  ["\n \n", " \nb", 3],
  ["a\n" + " ".repeat(400), "\nb", 1],
  ["a" + "\u0301".repeat(400), "\u0316", null],
  ["a".repeat(400), "\u0301", 399],
  ["a".repeat(399) + "\ud83e", "\udd8a", 399],
  [" ".repeat(400), "<mask>", null],
])("%j in front of %j is cut at %j", (text, more, cut) => {
  const mask = { id: 1000, content: "<mask>", lstrip: true };
  const { stable } = opened({ normalizer: { type: "NFC" }, added_tokens: [mask] });
  expect(stable?.cut(text + more, text.length)).toBe(cut);
});

test.each([
  [{ pre_tokenizer: { type: "Split", pattern: { Regex: "\\p{L}+|." }, behavior: "Isolated" } }, {}],
  [{ normalizer: { type: "NFKC" } }, {}],
  [{}, { dropout: 0.1 }],
  [{}, { end_of_word_suffix: "</w>" }],
  [{}, { continuing_subword_prefix: "##" }],
])("words that may depend on far text or on their place are not known: %j %j", (changes, model) => {
  expect(opened(changes, model).stable).toBeNull();
});
