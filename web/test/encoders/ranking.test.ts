import { expect, test, vi } from "vitest";

import { classify } from "../../src/encoders/classify.js";
import type { TokenText } from "../../src/encoders/encoder_model.js";
import { rerank, score } from "../../src/encoders/ranking.js";
import { EncoderTokenizer } from "../../src/encoders/tokenizer/encoder_tokenizer.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";
import { CLASSIFIER, EMBEDDING, fakeEncoder } from "./fake_encoder.js";

/** A reranker whose score is the number of tokens of type 1. */
const lengthOfDocument = ({ types }: TokenText): number[] => [(types ?? []).reduce((sum, type) => sum + type, 0)];
const reranker = () => fakeEncoder({ embedding: null, classifier: CLASSIFIER }, lengthOfDocument);

test("a reranker reads pairs in one sequence, and the most relevant documents come first, equal ones in order", async () => {
  const { model, inputs } = reranker();
  const documents = ["ab", { text: "abcd", title: "long" }, "cd"];
  const answer = await rerank(model, { query: "q", documents }, {});
  expect(answer.results).toEqual([
    { index: 1, relevance_score: 4, document: documents[1] },
    { index: 0, relevance_score: 2, document: { text: "ab" } },
    { index: 2, relevance_score: 2, document: { text: "cd" } },
  ]);
  expect(inputs[0]).toMatchObject({ ids: [113, 97, 98], types: [0, 1, 1] });
  expect(answer.usage.total_tokens).toBe(11);
  const best = await rerank(model, { query: "q", documents, top_n: 1, return_documents: false }, {});
  expect(best.results).toEqual([{ index: 1, relevance_score: 4 }]);
});

test("only documents are shortened, to the context or to a number of tokens", async () => {
  const { model, inputs } = reranker();
  await rerank(model, { query: "abc", documents: ["x".repeat(50)], truncate: true }, {});
  await rerank(model, { query: "abc", documents: ["x".repeat(50)], max_tokens_per_doc: 4 }, {});
  expect(inputs.map(({ ids }) => ids.length)).toEqual([16, 7]);
  await expect(rerank(model, { query: "abc", documents: ["a", "x".repeat(14)] }, {})).rejects.toMatchObject({
    param: "documents[1]",
  });
  await expect(rerank(model, { query: "q".repeat(16), documents: ["a"], truncate: true }, {})).rejects.toThrow(
    "leaves none for a document",
  );
});

test("labels of a request are those that a text entails, and a text that is shortened keeps its hypothesis", async () => {
  const classifier = { ...CLASSIFIER, labels: ["contradiction", "neutral", "entailment"], relevance: null };
  const entailed = ({ ids }: TokenText): number[] => [
    0,
    9,
    ids.slice(0, ids.indexOf(124)).filter((id) => id === ids.at(-1)).length,
  ];
  const { model, inputs } = fakeEncoder({ embedding: null, classifier }, entailed);
  const asked = { labels: ["b", "a"], hypothesis_template: "|{}" };
  const { data, usage } = await classify(model, { input: ["aab", "b"], ...asked }, {});
  expect(data.map(({ label, num_classes }) => [label, num_classes])).toEqual([
    ["a", 2],
    ["b", 2],
  ]);
  expect(data[0]?.probs?.[0]).toBeCloseTo(1 / (1 + Math.E));
  expect(usage.total_tokens).toBe(2 * (3 + 2) + 2 * (1 + 2));
  expect(inputs[0]).toMatchObject({ ids: [97, 97, 98, 124, 98], types: [0, 0, 0, 1, 1] });
  const alone = await classify(model, { input: "aab", ...asked, labels: ["a"] }, {});
  expect(alone.data[0]?.probs?.[0]).toBeCloseTo(Math.E ** 2 / (1 + Math.E ** 2));
  const several = await classify(model, { input: "aab", multi_label: true, ...asked }, {});
  expect(several.data[0]?.probs?.[1]).toBeCloseTo(Math.E ** 2 / (1 + Math.E ** 2));
  await classify(model, { input: "aab", truncate_prompt_tokens: 3, ...asked }, {});
  expect(inputs.at(-1)?.ids).toEqual([97, 124, 97]);
  for (const [params, message] of [
    [{ input: [1, 2], ...asked }, "input must be a text or texts"],
    [{ input: ["a", ""], ...asked }, "input[1] is empty"],
    [{ input: ["a", "a".repeat(16)], ...asked }, "input[1] has"],
    [{ input: "a".repeat(16), ...asked }, "input has"],
    [{ input: Array.from({ length: 5001 }, () => "a"), ...asked }, "10002 texts; at most 10000 are supported"],
    [{ input: "a", labels: [] }, "labels is empty"],
    [{ input: "a", labels: ["a"], hypothesis_template: "{{}}" }, "hypothesis_template has a brace besides {}"],
    [{ input: "a", multi_label: true }, "multi_label needs labels"],
  ] as const)
    await expect(classify(model, params, {})).rejects.toThrow(message);
});

test.each([
  ["input[1]", { input: ["a", "\ud800"], labels: ["a"] }],
  ["labels[1]", { input: "a", labels: ["a", "\udfff"] }],
  ["hypothesis_template", { input: "a", labels: ["a"], hypothesis_template: "\ud800{}" }],
])("an error for half of a surrogate pair names its parameter: %s", async (param, params) => {
  const labels = ["contradiction", "entailment"];
  const { model } = fakeEncoder({ context: 64, embedding: null, classifier: { ...CLASSIFIER, labels } });
  await expect(classify(model, params, {})).rejects.toMatchObject({ param, details: { code: "invalid_text" } });
});

test.each([null, EMBEDDING])("so does that of a ranking, by a reranker or by vectors", async (embedding) => {
  const classifier = embedding === null ? CLASSIFIER : null;
  const { model } = fakeEncoder({ embedding, classifier }, () => [1]);
  for (const [param, query, documents] of [
    ["query", "\ud800", ["a"]],
    ["documents[1]", "q", ["a", "\udfff"]],
  ] as const)
    await expect(rerank(model, { query, documents }, {})).rejects.toMatchObject({ param });
  const [text_1, text_2] = [
    ["a", "\ud800"],
    ["b", "c"],
  ];
  await expect(score(model, { text_1, text_2 }, {})).rejects.toMatchObject({ param: "text_1[1]" });
});

test("a template writes the pair, and only it writes control tokens", async () => {
  const classifier = { ...CLASSIFIER, template: "<s>{instruction}|{query}|{document}<s>", instruction: "i" };
  const { model, inputs } = fakeEncoder({ embedding: null, classifier }, () => [1]);
  await rerank(model, { query: "q", documents: ["{query}", "<s>", "x".repeat(40)], truncate: true }, {});
  const texts = inputs.map(({ ids }) => ids.map((id) => (id === 256 ? "^" : String.fromCharCode(id))).join(""));
  expect(texts).toEqual(["^i|q|{query}^", "^i|q|<s>^", "^i|q|xxxxxxxxxx^"]);
});

test("of texts that cannot fit into a template, only beginnings are read", async () => {
  const classifier = { ...CLASSIFIER, template: "<s>{query}|{document}<s>" };
  const { model, inputs } = fakeEncoder({ embedding: null, classifier }, () => [1]);
  const read = vi.spyOn(Tokenizer.prototype, "encode");
  const template = vi.spyOn(Tokenizer.prototype, "encodeTemplate");
  const long = "x!".repeat(100_000);
  await rerank(model, { query: "q", documents: [long], truncate: true }, {});
  expect(inputs.map(({ ids }) => ids.length)).toEqual([16]);
  await rerank(model, { query: "q", documents: [long], max_tokens_per_doc: 3 }, {});
  expect(inputs.map(({ ids }) => ids.length)).toEqual([16, 7]);
  await expect(rerank(model, { query: "q", documents: [long] }, {})).rejects.toThrow(
    /maximum context length is 16 tokens. However, documents\[0\] has at least \d{2,3} tokens/u,
  );
  await expect(rerank(model, { query: long, documents: ["a"], truncate: true }, {})).rejects.toThrow(
    "the query and its template have more than 16 tokens",
  );
  const texts = [
    ...read.mock.calls.map(([text]) => text),
    ...template.mock.calls.flatMap(([, values]) => Object.values(values)),
  ];
  expect(Math.max(...texts.map(({ length }) => length))).toBeLessThan(1000);
});

test("an embedding model ranks by cosines, with its prompts for queries and documents", async () => {
  const prompts = [
    { name: "query", text: "?" },
    { name: "document", text: "=" },
  ];
  const { model, inputs } = fakeEncoder({ embedding: { ...EMBEDDING, prompts } }, ({ ids }) =>
    ids.includes(120) ? [3, 4, 0, 0] : [0, 2, 0, 0],
  );
  const { results } = await rerank(model, { query: "x", documents: ["a", "x"] }, {});
  expect(results.map(({ index, relevance_score: found }) => [index, found.toFixed(4)])).toEqual([
    [1, "1.0000"],
    [0, "0.8000"],
  ]);
  expect(inputs.map(({ ids }) => String.fromCharCode(...ids.slice(1)))).toEqual(["?x", "=a", "=x"]);
});

test("each second text is scored with the first one, or with that of its index", async () => {
  const { model, inputs } = reranker();
  const one = await score(model, { text_1: "q", text_2: ["a", "bcd"] }, {});
  expect(one.data).toEqual([
    { index: 0, object: "score", score: 1 },
    { index: 1, object: "score", score: 3 },
  ]);
  await score(model, { text_1: ["q", "r"], text_2: ["a", "b"] }, {});
  expect(inputs.slice(2).map(({ ids }) => ids)).toEqual([
    [113, 97],
    [114, 98],
  ]);
});

test("classes of texts have the probability of each label", async () => {
  const classifier = { ...CLASSIFIER, labels: ["no", "yes"], activation: "softmax" as const, relevance: null };
  const { model } = fakeEncoder({ embedding: null, classifier }, () => [1000, 1000 + Math.log(3)]);
  const { data } = await classify(model, { input: ["a", "b"] }, {});
  expect(data[1]).toMatchObject({ index: 1, label: "yes", num_classes: 2 });
  expect(data[1]?.probs?.map((value) => value.toFixed(4))).toEqual(["0.2500", "0.7500"]);
  await expect(rerank(model, { query: "q", documents: ["a"] }, {})).rejects.toThrow("does not score pairs");
});

test("classes of tokens have the places of their characters", async () => {
  const classifier = { ...CLASSIFIER, labels: ["O", "B"], activation: "sigmoid" as const, per_token: true };
  const { model } = fakeEncoder({ embedding: null, classifier }, ({ ids }) =>
    ids.flatMap((id) => [0, id === 0xa9 ? 5 : -5]),
  );
  const text = "aé🦊";
  const { data } = await classify(model, { input: text }, {});
  const tokens = data[0]?.tokens ?? [];
  expect(tokens.map(({ start, end, label }) => [start === undefined ? null : text.slice(start, end), label])).toEqual([
    [null, "O"],
    ["a", "O"],
    ["é", "O"],
    ["é", "B"],
    ["🦊", "O"],
    ["🦊", "O"],
    ["🦊", "O"],
    ["🦊", "O"],
  ]);
});

test("spans have the characters of their tokens, without white space at their ends", async () => {
  const labels = ["O", ...["name", "date"].flatMap((kind) => ["B", "I", "E", "S"].map((part) => `${part}-${kind}`))];
  const transitions = {
    background_stay: 0,
    background_to_start: 0,
    inside_to_continue: 0,
    inside_to_end: 0,
    end_to_background: 0,
    end_to_start: 0,
  };
  const classifier = { ...CLASSIFIER, labels, activation: "softmax" as const, per_token: true, transitions };
  // By letter, the scores of the labels. Alone, most letters would be outside, and "1" inside of a date.
  const row = (scores: Readonly<Record<string, number>>): number[] => labels.map((label) => scores[label] ?? 0);
  const [begins, ends, outside] = [row({ "B-name": 4 }), row({ "E-name": 4 }), row({ O: 4 })];
  const inside = row({ O: 4, "I-name": 3.5 });
  const digit = row({ "I-date": 4, "I-name": 3.5 });
  const dateEnds = row({ "E-date": 4, "E-name": 3.5 });
  const letters = { "<": begins, "\t": begins, ">": ends, "\n": ends, ".": outside, "1": digit, "]": dateEnds };
  const byId = new Map(Object.entries(letters).map(([letter, scores]) => [letter.charCodeAt(0), scores]));
  const { model } = fakeEncoder({ embedding: null, classifier }, ({ ids }) =>
    // The tokenizer adds the first token.
    ids.flatMap((id, token) => (token === 0 ? outside : (byId.get(id) ?? inside))),
  );
  // White space to Unicode is U+0085, not U+FEFF and U+001C. Of Python's and JavaScript's lists, each has one of the
  // others.
  const input = ["..< 🦊 >.", "..", "\ta1é\n.\t\n<a]", "\t\u0085a\ufeff\n", "\t\u001ca\u0085\n"];
  const { data } = await classify(model, { input }, {});
  const spans = data.map((one, index) =>
    one.spans?.map(({ label, start, end }) => [label, input[index]?.slice(start, end)]),
  );
  expect(spans).toEqual([
    [["name", "< 🦊 >"]],
    [],
    [
      ["name", "a1é"],
      ["name", "<a]"],
    ],
    [["name", "a\ufeff"]],
    [["name", "\u001ca"]],
  ]);
  const certain = Math.exp(4) / (Math.exp(4) + 8);
  const inner = Math.exp(3.5) / (Math.exp(4) + Math.exp(3.5) + 7);
  expect(data[0]?.spans?.[0]?.score).toBeCloseTo((2 * certain + 6 * inner) / 8);
  const given = await classify(model, { input: [[0, 60, 97, 62]] }, {});
  expect(given.data[0]?.spans).toBeUndefined();
  expect(given.data[0]?.tokens?.map(({ label }) => label)).toEqual(["O", "B-name", "I-name", "E-name"]);
  // No span may be left out in silence.
  const json = JSON.stringify({ ...(JSON.parse(byteLevelTokenizer()) as object), normalizer: { type: "NFC" } });
  const tokenizer = new EncoderTokenizer(json, NO_TOKENS, new Tokenizer(json, NO_TOKENS));
  await expect(classify({ ...model, tokenizer }, { input: ["<a>", "<e\u0301>"] }, {})).rejects.toThrow(
    "input[1] has characters in another form than its tokens",
  );
  expect((await classify({ ...model, tokenizer }, { input: "<é>" }, {})).data[0]?.spans).toHaveLength(1);
});

test.each([
  [{ query: "", documents: ["a"] }, "query"],
  [{ query: "q", documents: [] }, "documents"],
  [{ query: "q", documents: ["a", ""] }, "documents[1]"],
  [{ query: "q", documents: [{}] }, "documents[0]"],
  [{ query: "q", documents: ["a"], top_n: -1 }, "top_n"],
  [{ query: "q", documents: ["a"], max_tokens_per_doc: 0 }, "max_tokens_per_doc"],
  [{ query: "q", documents: ["a"], rank_fields: [] }, "rank_fields"],
])("wrong parameters are errors: %j", async (params, param) => {
  await expect(rerank(reranker().model, params as never, {})).rejects.toMatchObject({ status: 400, param });
  await expect(score(reranker().model, { text_1: ["a", "b"], text_2: ["c"] }, {})).rejects.toMatchObject({
    param: "text_1",
  });
  await expect(classify(fakeEncoder().model, { input: "a" }, {})).rejects.toThrow("has no classes");
});
