import { expect, test } from "vitest";

import { Sentences } from "../../src/voice/sentences.js";

/** The sentences of a text that arrives in pieces of ``size`` characters. */
function cut(text: string, size: number, language?: string): readonly string[] {
  const sentences = new Sentences(language);
  const found: string[] = [];
  for (let at = 0; at < text.length; at += size) found.push(...sentences.push(text.slice(at, at + size)));
  return [...found, ...sentences.end()];
}

test.each([1, 3, 1000])("sentences end where they end, in pieces of %d characters", (size) => {
  expect(cut("It costs 3.50 euros. Really? Yes, at nearfar.example today! And", size)).toEqual([
    "It costs 3.50 euros.",
    "Really?",
    "Yes, at nearfar.example today!",
    "And",
  ]);
  expect(cut("今日は晴れです。散歩に行きますか？", size, "ja")).toEqual(["今日は晴れです。", "散歩に行きますか？"]);
});

test("a sentence is there as soon as the next one begins", () => {
  const sentences = new Sentences("en");
  expect(sentences.push("The sky is blue. ")).toEqual([]);
  expect(sentences.push("I")).toEqual(["The sky is blue."]);
});

test("marks of Markdown are not spoken, and lines are sentences", () => {
  expect(
    cut("## Plan\n\n- **First**, read [the manual](https://example.org/a).\n- ~~Then~~ run `make`.\n\n---\n", 4),
  ).toEqual(["Plan", "First, read the manual.", "Then run make."]);
});
