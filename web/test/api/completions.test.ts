import { expect, test } from "vitest";

import { Completions } from "../../src/api/completions.js";
import type { CompletionChunk, CompletionCreateParamsNonStreaming } from "../../src/api/types.js";
import { fakeModel, promptText } from "./fake_model.js";

test("a text is continued without the template, with the special tokens that texts start with", async () => {
  const { model, source } = fakeModel("def");
  const answer = await new Completions(model).create({ prompt: "abc", max_tokens: 2 });
  expect(answer).toMatchObject({
    object: "text_completion",
    model: "fake",
    choices: [{ index: 0, text: "de", logprobs: null, finish_reason: "length" }],
  });
  expect(answer.usage).toEqual({
    prompt_tokens: 4,
    completion_tokens: 2,
    total_tokens: 6,
    prompt_tokens_details: { cached_tokens: 3 },
  });
  expect([source.requests[0]?.promptIds[0], promptText(model, source.requests[0])]).toEqual([256, "abc"]);
});

test("several prompts have n answers each, numbered prompt by prompt", async () => {
  const { model, source } = fakeModel("1", "2", "3", "4");
  const { choices, usage } = await new Completions(model).create({ prompt: ["a", "b"], n: 2, echo: true });
  expect(choices.map(({ text }) => text)).toEqual(["a1", "a2", "b3", "b4"]);
  expect(usage.prompt_tokens).toBe(4);
  expect(source.most).toBe(4);
});

test.each([
  [[97, 98], [[97, 98]]],
  [
    [[97], [98]],
    [[97], [98]],
  ],
])("token ids are used unchanged: %j", async (prompt, expected) => {
  const { model, source } = fakeModel("x");
  await new Completions(model).create({ prompt });
  expect(source.requests.map(({ promptIds }) => promptIds)).toEqual(expected);
});

test("logprobs have the older form, with the offsets of the tokens in the text", async () => {
  const { choices } = await new Completions(fakeModel("ab").model).create({ prompt: "x", logprobs: 2 });
  expect(choices[0]?.logprobs).toEqual({
    tokens: ["a", "b"],
    token_logprobs: [-1, -1],
    top_logprobs: [
      { a: -1, b: -2 },
      { b: -1, c: -2 },
    ],
    text_offset: [0, 1],
  });
});

test("the chunks of a stream add up to the complete answer", async () => {
  const chunks: CompletionChunk[] = [];
  const stream = await new Completions(fakeModel("hello").model).create({
    prompt: "x",
    stream: true,
    stop: "lo",
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) chunks.push(chunk);
  expect(chunks.map(({ choices }) => choices[0]?.text ?? "").join("")).toBe("hel");
  expect(chunks.at(-2)).toMatchObject({ choices: [{ finish_reason: "stop" }], usage: null });
  expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 5 } });
  // A stop string ends an answer before the engine reports the number of cached tokens.
  expect(chunks.at(-1)?.usage).not.toHaveProperty("prompt_tokens_details");
});

test.each([
  [{ suffix: "a" }, "suffix"],
  [{ best_of: 2 }, "best_of"],
  [{ prompt: [] }, "prompt"],
  [{ prompt: null }, "prompt"],
  [{ prompt: ["a", 1] }, "prompt"],
  [{ echo: true, logprobs: 1 }, "echo"],
])("unsupported parameters are errors: %j", async (wrong, param) => {
  const answer = new Completions(fakeModel("x").model).create({
    prompt: "a",
    ...wrong,
  } as CompletionCreateParamsNonStreaming);
  await expect(answer).rejects.toMatchObject({ status: 400, param });
});
