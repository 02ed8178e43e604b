import fc from "fast-check";
import { expect, test } from "vitest";

import { TextStream } from "../../src/text/text_stream.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { NO_TOKENS, byteFallbackTokenizer, byteLevelTokenizer } from "./tokenizers.js";

const TOKENIZERS = {
  "byte level": new Tokenizer(byteLevelTokenizer(), NO_TOKENS),
  "byte fallback": new Tokenizer(byteFallbackTokenizer(), NO_TOKENS),
};

function stream(tokenizer: Tokenizer, ids: readonly number[]): string[] {
  const stream = new TextStream(tokenizer);
  return [...ids.map((id) => stream.feed(id)), stream.finish()];
}

test.each(Object.entries(TOKENIZERS))(
  "%s: the pieces put together are the text of all ids, for any ids",
  (_, tokenizer) => {
    fc.assert(
      fc.property(fc.array(fc.nat(270), { maxLength: 40 }), (ids) => {
        expect(stream(tokenizer, ids).join("")).toBe(tokenizer.decode(ids));
      }),
    );
  },
);

test.each(Object.entries(TOKENIZERS))(
  "%s: a character is returned complete, once its last byte has arrived",
  (_, tokenizer) => {
    const ids = tokenizer.encode("né🦊!", false);
    const pieces = stream(tokenizer, ids);
    expect(pieces.join("")).toBe("né🦊!");
    expect(pieces.some((piece) => piece.includes("\ufffd"))).toBe(false);
  },
);

test("an incomplete character comes out at the end as U+FFFD", () => {
  const tokenizer = TOKENIZERS["byte level"];
  const ids = tokenizer.encode("a🦊", false);
  expect(stream(tokenizer, ids.slice(0, -1))).toEqual(["a", "", "", "", "\ufffd"]);
});

test("a word keeps the space before it, which decoders drop at the start of a text", () => {
  const tokenizer = TOKENIZERS["byte fallback"];
  const ids = tokenizer.encode("a b an", false);
  // The first token is the space that the tokenizer adds.
  expect(stream(tokenizer, ids)).toEqual(["", "a", " ", "b", " ", "a", "n", ""]);
});
