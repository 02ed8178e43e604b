import { expect, test } from "vitest";

import type { EmbeddingCreateParams } from "../../src/api/types.js";
import { embed } from "../../src/encoders/embeddings.js";
import { CLASSIFIER, EMBEDDING, fakeEncoder } from "./fake_encoder.js";

/** A model whose vector is (the number of tokens, the last token, 0, 0). */
function embedding(spec: Partial<typeof EMBEDDING> = {}) {
  const { model, inputs } = fakeEncoder({ embedding: { ...EMBEDDING, ...spec } });
  return {
    embeddings: {
      create: (params: EmbeddingCreateParams, options = {}) => embed(model, params, options),
    },
    inputs,
  };
}

const numbers = (vector: string | number[] | undefined): number[] => (typeof vector === "object" ? vector : []);

test("one text returns OpenAI's list with one vector, and usage counts its special tokens", async () => {
  const answer = await embedding().embeddings.create({ input: "abc", model: "any", user: "me" });
  expect(answer).toEqual({
    object: "list",
    data: [{ object: "embedding", index: 0, embedding: [4, 99, 0, 0] }],
    model: "fake",
    usage: { prompt_tokens: 4, total_tokens: 4 },
  });
});

test.each<[EmbeddingCreateParams["input"], number[][]]>([
  [
    ["a", "bc"],
    [
      [256, 97],
      [256, 98, 99],
    ],
  ],
  [[5, 6], [[5, 6]]],
  [
    [[5], [6, 7]],
    [[5], [6, 7]],
  ],
])("several inputs are accepted, and token ids are used unchanged: %j", async (input, expected) => {
  const { embeddings, inputs } = embedding();
  const { data, usage } = await embeddings.create({ input });
  expect(inputs.map(({ ids }) => ids)).toEqual(expected);
  expect(data.map(({ index }) => index)).toEqual(expected.map((_, index) => index));
  expect(usage.total_tokens).toBe(expected.flat().length);
});

test("vectors are truncated first and then scaled to length 1, if the model is built so", async () => {
  const { embeddings } = embedding({ normalize: true, dimensions: [1] });
  const [complete, truncated] = [
    await embeddings.create({ input: [1, 1, 4] }),
    await embeddings.create({ input: [1, 1, 4], dimensions: 1 }),
  ];
  expect(numbers(complete.data[0]?.embedding).map((value) => value.toFixed(6))).toEqual([
    "0.600000",
    "0.800000",
    "0.000000",
    "0.000000",
  ]);
  expect(truncated.data[0]?.embedding).toEqual([1]);
});

test("base64 encodes the float32 bytes", async () => {
  const { data } = await embedding().embeddings.create({ input: [[7], [8, 9]], encoding_format: "base64" });
  const read = data.map(({ embedding: text }) => [
    ...new Float32Array(Uint8Array.from(atob(String(text)), (character) => character.charCodeAt(0)).buffer),
  ]);
  expect(read).toEqual([
    [1, 7, 0, 0],
    [2, 9, 0, 0],
  ]);
});

test.each([
  [{ input: [] }, "input"],
  [{ input: null }, "input"],
  [{ input: ["a", 1] }, "input"],
  [{ input: "a", encoding_format: "int8" }, "encoding_format"],
  [{ input: "" }, "input"],
  [{ input: ["a", ""] }, "input[1]"],
  [{ input: "x".repeat(16) }, "input"],
  [{ input: [300] }, "input"],
  [{ input: "\ud800" }, "input"],
  [{ input: new Array(10_001).fill("a") }, "input"],
  [{ input: "a", dimensions: 5 }, "dimensions"],
  [{ input: "a", dimensions: 2 }, "dimensions"],
  [{ input: "a", dimensions: 0 }, "dimensions"],
  [{ input: "a", prompt_name: "query" }, "prompt_name"],
  [{ input: "a", input_type: "query" }, "input_type"],
  [{ input: "a", input_type: "search_query", prompt_name: "query" }, "input_type"],
  [{ input: "a", truncate_prompt_tokens: 0 }, "truncate_prompt_tokens"],
  [{ input: "a", truncate_prompt_tokens: 17 }, "truncate_prompt_tokens"],
  [{ input: "a", truncate_prompt_tokens: 4, truncate: false }, "truncate"],
  [{ input: "a", temperature: 1 }, "temperature"],
])("unsupported parameters are errors: %j", async (wrong, param) => {
  await expect(embedding().embeddings.create(wrong as EmbeddingCreateParams)).rejects.toMatchObject({
    status: 400,
    param,
  });
});

test("a signal in the parameters or in the options ends the request with its reason", async () => {
  const signal = AbortSignal.abort(new Error("enough"));
  await expect(embedding().embeddings.create({ input: "a", signal })).rejects.toThrow("enough");
  await expect(embedding().embeddings.create({ input: "a" }, { signal })).rejects.toThrow("enough");
});

test("a model of scores makes no embeddings", async () => {
  const { model } = fakeEncoder({ embedding: null, classifier: CLASSIFIER });
  await expect(embed(model, { input: "a" }, {})).rejects.toThrow("scores texts and makes no embeddings");
});

test("prompts precede texts, by name, by the kind of text, or by default, and never token ids", async () => {
  const prompts = [
    { name: "query", text: "q: " },
    { name: "passage", text: "p:" },
  ];
  const { embeddings, inputs } = embedding({ prompts, default_prompt: "passage" });
  await embeddings.create({ input: ["a"], prompt_name: "query" });
  await embeddings.create({ input: ["a"], input_type: "search_query" });
  await embeddings.create({ input: ["a"], input_type: "clustering" });
  await embeddings.create({ input: [97] });
  const texts = inputs.map(({ ids }) => String.fromCharCode(...ids.filter((id) => id < 256)));
  expect(texts).toEqual(["q: a", "q: a", "p:a", "a"]);
});

test("long texts are shortened at their end if the request allows it, and special tokens stay", async () => {
  const { embeddings, inputs } = embedding();
  await embeddings.create({ input: "x".repeat(100), truncate: true });
  await embeddings.create({ input: ["abcdef"], truncate_prompt_tokens: 3 });
  await embeddings.create({ input: [7, 8, 9], truncate_prompt_tokens: 2 });
  await embeddings.create({ input: "y".repeat(100), truncate_prompt_tokens: -1 });
  expect(inputs.map(({ ids }) => ids.length)).toEqual([16, 3, 2, 16]);
  expect(inputs[1]?.ids).toEqual([256, 97, 98]);
});
