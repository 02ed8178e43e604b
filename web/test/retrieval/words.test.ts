import { expect, test } from "vitest";

import { best, fuse } from "../../src/retrieval/ranks.js";
import { WordIndex } from "../../src/retrieval/word_index.js";
import { wordsOf } from "../../src/retrieval/words.js";

test("words are in lower case and compatible forms, identifiers also give their parts", () => {
  expect(wordsOf("The maxTokens of max_tokens, HTTPServer!")).toEqual([
    "the",
    "maxtoken",
    "max",
    "token",
    "of",
    "max_token",
    "max",
    "token",
    "httpserver",
    "http",
    "server",
  ]);
  expect(wordsOf("Größe ﬁle １２")).toEqual(["größe", "file", "12"]);
  expect(wordsOf("我喜欢数据库").length).toBeGreaterThan(1);
});

test("English plurals and singulars are the same word", () => {
  for (const [many, one] of [
    ["policies", "policy"],
    ["names", "name"],
    ["keys", "key"],
    ["caches", "cache"],
  ])
    expect(wordsOf(many ?? "")).toEqual(wordsOf(one ?? ""));
  expect(wordsOf("class status")).toEqual(["class", "status"]);
});

/** BM25 as in Robertson and Zaragoza 2009, computed from the texts. */
function bm25(texts: readonly string[], query: string): number[] {
  const documents = texts.map(wordsOf);
  const mean = documents.reduce((sum, { length }) => sum + length, 0) / documents.length;
  return documents.map((words) =>
    wordsOf(query).reduce((sum, word) => {
      const count = words.filter((other) => other === word).length;
      const having = documents.filter((other) => other.includes(word)).length;
      const rarity = Math.log(1 + (documents.length - having + 0.5) / (having + 0.5));
      return sum + (rarity * count * 2.2) / (count + 1.2 * (0.25 + (0.75 * words.length) / mean));
    }, 0),
  );
}

const TEXTS = ["a red fox", "the red house is red", "a green house", "nothing here at all", "fox fox fox and hound"];

test("the index ranks by BM25, also after passages were removed", () => {
  const index = new WordIndex();
  for (const text of [...TEXTS, "a red fox that leaves"]) index.add(text);
  index.remove(5, "a red fox that leaves");
  index.remove(5, "a red fox that leaves");
  const expected = bm25(TEXTS, "red fox house fox");
  const found = index.search("red fox house fox", 10);
  expect(found.map(({ slot }) => slot)).toEqual(
    best(
      expected.map((score, slot) => [slot, score] as const).filter(([, score]) => score > 0),
      10,
    ).map((hit) => hit.slot),
  );
  for (const { slot, score } of found) expect(score).toBeCloseTo(expected[slot] ?? 0, 10);
  expect(index.search("unknown words", 3)).toEqual([]);
});

test("words with the names of object members are ordinary words", () => {
  const index = new WordIndex();
  index.add("constructor toString __proto__");
  expect(index.search("constructor", 1)).toHaveLength(1);
  expect(index.search("hasOwnProperty", 1)).toHaveLength(0);
});

test("the best of many scores come in order, and equal ones by their slot", () => {
  const scores = Array.from({ length: 500 }, (_, slot) => [slot, (slot * 7919) % 97] as const);
  const sorted = [...scores].sort(([a, first], [b, second]) => second - first || a - b).slice(0, 20);
  expect(best(scores, 20)).toEqual(sorted.map(([slot, score]) => ({ slot, score })));
});

test("fusion prefers what both rankings found", () => {
  const ranking = (...slots: number[]) => slots.map((slot) => ({ slot, score: 0 }));
  expect(fuse([ranking(1, 2, 3), ranking(4, 3, 5)], 3).map(({ slot }) => slot)).toEqual([3, 1, 4]);
});
