import { expect, test } from "vitest";

import { Embeddings } from "../../src/api/embeddings.js";
import type { EmbeddingCreateParams } from "../../src/api/types.js";
import { fakeModel } from "./fake_model.js";

/** A model whose vector is (the number of tokens, the last token, 0, 0). */
function embedding({ normalize = false } = {}): {
  readonly embeddings: Embeddings;
  readonly inputs: (readonly number[])[];
} {
  const inputs: (readonly number[])[] = [];
  const source = {
    embed: (texts: readonly (readonly number[])[], signal?: AbortSignal) => {
      signal?.throwIfAborted();
      inputs.push(...texts);
      return Promise.resolve(texts.map((ids) => Float32Array.of(ids.length, ids.at(-1) ?? 0, 0, 0)));
    },
  };
  return { embeddings: new Embeddings({ ...fakeModel("").model, embeddings: { source, size: 4, normalize } }), inputs };
}

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
    ["a", ""],
    [[256, 97], [256]],
  ],
  [[5, 6], [[5, 6]]],
  [
    [[5], [6, 7]],
    [[5], [6, 7]],
  ],
])("several inputs are accepted, and token ids are used unchanged: %j", async (input, expected) => {
  const { embeddings, inputs } = embedding();
  const { data, usage } = await embeddings.create({ input });
  expect(inputs).toEqual(expected);
  expect(data.map(({ index }) => index)).toEqual(expected.map((_, index) => index));
  expect(usage.total_tokens).toBe(expected.flat().length);
});

test("vectors are truncated first and then scaled to length 1, if the model is built so", async () => {
  const { embeddings } = embedding({ normalize: true });
  const [complete, truncated] = [
    await embeddings.create({ input: [1, 1, 4] }),
    await embeddings.create({ input: [1, 1, 4], dimensions: 1 }),
  ];
  expect(complete.data[0]?.embedding.map((value) => value.toFixed(6))).toEqual([
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
    ...new Float32Array(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer),
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
  [{ input: "a", dimensions: 5 }, "dimensions"],
  [{ input: "a", dimensions: 0 }, "dimensions"],
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

test("a model that generates text makes no embeddings", async () => {
  await expect(new Embeddings(fakeModel("").model).create({ input: "a" })).rejects.toThrow(
    "generates text and makes no embeddings",
  );
});
