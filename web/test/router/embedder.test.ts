// A policy that reads the embedding of the last user message: who embeds, and what happens without a vector.

import { expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import { MESSAGES, setUp } from "./hybrid_set_up.js";

/** Near is sure of a text whose vector points to the right; without a vector far is likelier to be right. */
const POLICY = {
  mode: "auto",
  timeouts: { near_first_token_ms: 50 },
  quality: {
    predictor: {
      version: 2,
      features: ["question"],
      terms: [],
      mean: [0],
      scale: [1],
      near: { weights: [0, 5], bias: -1 },
      far: { weights: [0, -5], bias: 0 },
      calibration: { near: [1, 0], far: [1, 0] },
      embedding: { model: "compass", mean: [0, 1], components: [[1, 0]] },
    },
  },
};
const VECTORS: Readonly<Record<string, readonly number[]>> = {
  east: [1, 1],
  west: [-1, 1],
  short: [1],
  nan: [NaN, 1],
};

function compass() {
  const texts: string[] = [];
  const embed = async (text: string): Promise<readonly number[]> => {
    texts.push(text);
    if (text === "slow") await new Promise(() => undefined);
    const vector = VECTORS[text];
    if (vector === undefined) throw new Error("no encoder");
    return vector;
  };
  return { texts, embedder: { model: "compass", embed } };
}

const chat = (content: string) => ({
  messages: [
    { role: "user" as const, content: "east" },
    { role: "assistant" as const, content: "west" },
    { role: "user" as const, content },
  ],
});

test("the vector of the last user message decides", async () => {
  const { texts, embedder } = compass();
  const { nf } = await setUp({ policy: POLICY, embedder });
  expect((await nf.chat.completions.create(chat("east"))).route).toMatchObject({ side: "near", reason: "quality" });
  expect((await nf.chat.completions.create(chat("west"))).route).toMatchObject({ side: "far", reason: "quality" });
  expect(texts).toEqual(["east", "west"]);
});

test.each(["broken", "slow"])("without a vector (%s) a request is decided as if it were the mean", async (text) => {
  const { nf, clock } = await setUp({ policy: POLICY, embedder: compass().embedder });
  const answering = nf.chat.completions.create(chat(text));
  await clock.pass(50);
  const { route } = await answering;
  expect(route).toMatchObject({ side: "far", reason: "quality" });
  expect(route?.scores.near_right).toBeCloseTo(0.26894142, 7);
  expect(route?.scores.far_right).toBe(0.5);
});

test("an aborted request does not wait for its vector", async () => {
  const { nf } = await setUp({ policy: POLICY, embedder: compass().embedder });
  const controller = new AbortController();
  const answering = nf.chat.completions.create(chat("slow"), { signal: controller.signal });
  controller.abort(new Error("enough"));
  await expect(answering).rejects.toThrow("enough");
});

test.each(["short", "nan"])("a vector that the model cannot have made (%s) is an error", async (text) => {
  const { nf } = await setUp({ policy: POLICY, embedder: compass().embedder });
  const failure: unknown = await nf.chat.completions.create(chat(text)).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(RequestError);
  expect(failure).toMatchObject({ details: { code: "bad_situation", param: "embedding" } });
  expect((failure as RequestError).message).toContain("not the 2 finite ones of compass");
});

test.each([undefined, { ...compass().embedder, model: "other" }])(
  "a policy that reads embeddings needs its model (%#)",
  async (embedder) => {
    await expect(setUp({ policy: POLICY, embedder })).rejects.toMatchObject({
      code: "request_error",
      message: "the policy: quality.predictor: it reads embeddings of compass; set embedder to that model's",
      details: { code: "bad_policy", param: "quality.predictor" },
    });
  },
);

test("an embedder is asked only by a policy that reads embeddings", async () => {
  const { texts, embedder } = compass();
  const { nf } = await setUp({ embedder });
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route?.side).toBe("near");
  expect(texts).toEqual([]);
});
