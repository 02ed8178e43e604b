import { expect, test } from "vitest";

import { Embeddings } from "../../src/api/embeddings.js";
import type { EmbeddingCreateParams } from "../../src/api/types.js";
import { fakeModel } from "./fake_model.js";

/** A model whose vector is (the number of tokens, the last token, 0, 0). */
function embedding({ normalize = false } = {}): {
  readonly embeddings: Embeddings;
  readonly asked: (readonly number[])[];
} {
  const asked: (readonly number[])[] = [];
  const source = {
    embed: (texts: readonly (readonly number[])[], signal?: AbortSignal) => {
      signal?.throwIfAborted();
      asked.push(...texts);
      return Promise.resolve(texts.map((ids) => Float32Array.of(ids.length, ids.at(-1) ?? 0, 0, 0)));
    },
  };
  return { embeddings: new Embeddings({ ...fakeModel("").model, embeddings: { source, size: 4, normalize } }), asked };
}

test("a text gives OpenAI's list of one, its tokens counted with the special ones", async () => {
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
])("several inputs, and token ids as they are: %j", async (input, expected) => {
  const { embeddings, asked } = embedding();
  const { data, usage } = await embeddings.create({ input });
  expect(asked).toEqual(expected);
  expect(data.map(({ index }) => index)).toEqual(expected.map((_, index) => index));
  expect(usage.total_tokens).toBe(expected.flat().length);
});

test("vectors are scaled to length 1 where the model says so, after they were cut", async () => {
  const { embeddings } = embedding({ normalize: true });
  const [whole, cut] = [
    await embeddings.create({ input: [1, 1, 4] }),
    await embeddings.create({ input: [1, 1, 4], dimensions: 1 }),
  ];
  expect(whole.data[0]?.embedding.map((value) => value.toFixed(6))).toEqual([
    "0.600000",
    "0.800000",
    "0.000000",
    "0.000000",
  ]);
  expect(cut.data[0]?.embedding).toEqual([1]);
});

test("base64 is that of the float32 bytes", async () => {
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
])("what is unsupported is refused: %j", async (wrong, param) => {
  await expect(embedding().embeddings.create(wrong as EmbeddingCreateParams)).rejects.toMatchObject({
    status: 400,
    param,
  });
});

test("a signal ends it with its reason, in the parameters or beside them", async () => {
  const signal = AbortSignal.abort(new Error("enough"));
  await expect(embedding().embeddings.create({ input: "a", signal })).rejects.toThrow("enough");
  await expect(embedding().embeddings.create({ input: "a" }, { signal })).rejects.toThrow("enough");
});

test("a model that generates text makes none", async () => {
  await expect(new Embeddings(fakeModel("").model).create({ input: "a" })).rejects.toThrow(
    "generates text and makes no embeddings",
  );
});
