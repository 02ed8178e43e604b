// The package @huggingface/tokenizers as the builds contain it, against the package itself.

import { build } from "esbuild";
import fc from "fast-check";
import { Tokenizer as Published } from "@huggingface/tokenizers";
import { beforeAll, expect, it } from "vitest";

import { tokenizersEsbuild } from "../../tokenizers_module.mjs";

let Built: typeof Published;
beforeAll(async () => {
  const contents = 'export { Tokenizer } from "@huggingface/tokenizers";';
  const stdin = { contents, resolveDir: import.meta.dirname };
  const result = await build({ stdin, bundle: true, format: "esm", write: false, plugins: [tokenizersEsbuild] });
  const address = `data:text/javascript,${encodeURIComponent(result.outputFiles[0]?.text ?? "")}`;
  ({ Tokenizer: Built } = (await import(address)) as { Tokenizer: typeof Published });
});

const LETTERS = ["a", "é", "😀"];
const textOf = (minLength: number, maxLength: number): fc.Arbitrary<string> =>
  fc.array(fc.constantFrom(...LETTERS), { minLength, maxLength }).map((letters) => letters.join(""));

function expectSameTokens(model: object, input: string, normalizer: object | null = null): void {
  const rest = { added_tokens: [], normalizer, pre_tokenizer: null, post_processor: null, decoder: null };
  const ids = (Kind: typeof Published): readonly number[] => new Kind({ ...rest, model }, {}).encode(input).ids;
  expect(ids(Built)).toEqual(ids(Published));
}

it("merges pairs in the same order", () => {
  const merges = fc.array(fc.tuple(fc.nat(), fc.nat()), { minLength: 10, maxLength: 25 });
  fc.assert(
    fc.property(merges, textOf(0, 60), (pairs, input) => {
      const tokens = [...LETTERS];
      const merged = pairs.map(([left, right]) => {
        const pair = [tokens[left % tokens.length], tokens[right % tokens.length]];
        tokens.push(pair.join(""));
        return pair;
      });
      const vocab = Object.fromEntries(tokens.map((token, id) => [token, id]));
      expectSameTokens({ type: "BPE", vocab, merges: merged, unk_token: null }, input);
    }),
  );
});

it("finds the same best pieces, and the same of two that are as good", () => {
  const scores = fc.array(fc.tuple(textOf(2, 4), fc.integer({ min: -5, max: -2 })), { maxLength: 12 });
  fc.assert(
    fc.property(scores, fc.nat(3), textOf(0, 40), (scored, known, input) => {
      const pieces = new Map([...LETTERS.slice(0, known).map((letter) => [letter, -2] as const), ...scored]);
      const vocab = [["<unk>", 0], ...pieces];
      expectSameTokens({ type: "Unigram", vocab, unk_id: 0 }, input);
    }),
  );
});

it.each(["NFC", "NFD", "NFKC", "NFKD"])("normalizes to %s as well", (type) => {
  const vocab = Object.fromEntries(["é", "e", "\u0301", "ﬁ", "f", "i"].map((token, id) => [token, id]));
  expectSameTokens({ type: "BPE", vocab, merges: [] }, "éﬁe\u0301", { type });
});
