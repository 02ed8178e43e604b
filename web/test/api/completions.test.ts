import { expect, test } from "vitest";

import { Completions } from "../../src/api/completions.js";
import type { Model } from "../../src/api/model.js";
import type { TokenRequest } from "../../src/engine/request.js";
import type { CompletionChunk, CompletionCreateParamsNonStreaming } from "../../src/api/types.js";
import { END, fakeModel, promptText } from "./fake_model.js";

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

test("an echo with logprobs lists the prompt, the answer and its end", async () => {
  const { model, source } = fakeModel("b");
  const [choice] = (await new Completions(model).create({ prompt: [120, 0xc3, 0xa9, 121], echo: true, logprobs: 1 }))
    .choices;
  expect(choice).toMatchObject({ text: "xéyb", finish_reason: "stop" });
  expect(choice?.logprobs).toEqual({
    tokens: ["x", "\ufffd", "\ufffd", "y", "b", "<s>"],
    token_logprobs: [null, -195, -169, -121, -1, -0.5],
    // Of two tokens with one name, the likelier counts.
    top_logprobs: [null, { "\ufffd": -1 }, { "\ufffd": -1 }, { y: -1 }, { b: -1 }, { "<s>": -0.5 }],
    text_offset: [0, 1, 1, 2, 3, 4],
  });
  expect(source.requests[0]).toMatchObject({ promptLogprobs: 4, promptAlternatives: 1 });
});

test("offsets count characters, not halves of them", async () => {
  const { choices } = await new Completions(fakeModel("😀b").model).create({ prompt: "😀", echo: true, logprobs: 0 });
  expect(choices[0]?.logprobs?.text_offset).toEqual([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3]);
});

test("a prompt is scored without an answer", async () => {
  const { model, source } = fakeModel("b");
  const request = { prompt: [[104, 105], [105]], echo: true, logprobs: 0, max_tokens: 0 };
  const { choices, usage } = await new Completions(model).create(request);
  expect(choices.map(({ text, finish_reason: reason }) => [text, reason])).toEqual([
    ["hi", "length"],
    ["i", "length"],
  ]);
  expect(choices.map(({ logprobs }) => logprobs?.token_logprobs)).toEqual([[null, -105], [null]]);
  expect([usage.completion_tokens, source.requests.map(({ maxTokens }) => maxTokens), source.running]).toEqual([
    0,
    [1, 1],
    0,
  ]);
});

test.each([
  [{ stop: "nk" }, ["h", "<thi"]],
  [{ stop: "nk>b", include_stop_str_in_output: true }, ["h", "<think>", "b"]],
  [{ stop: "nk", include_stop_str_in_output: true }, ["h", "<think"]],
  [{ stop: ["b", "<think>"] }, ["h"]],
  [{ stop: "nk", echo: true }, ["x", "h", "<thi"]],
  [{}, ["h", "<think>", "b"]],
])("the names of tokens join to the text before a stop string: %j", async (given, names) => {
  const completions = new Completions(fakeModel([104, 257, 98]).model);
  const { choices } = await completions.create({ prompt: [120], logprobs: 1, ...given });
  const text = names.join("");
  const listed = choices[0]?.logprobs;
  expect([listed?.tokens, choices[0]?.text]).toEqual([names, text]);
  expect(listed?.text_offset).toEqual(names.map((_, index) => names.slice(0, index).join("").length));
  expect(Object.keys(listed?.top_logprobs.at(-1) ?? {})[0]).toBe(names.at(-1));
});

test.each([0, 1, 5])("the rank of a prompt's token does not depend on the number that is listed: %d", async (most) => {
  const { model, source } = fakeModel("b");
  const generateTokens = source.generateTokens.bind(source);
  // The prompt's tokens are the fourth likeliest of those that the device lists.
  source.generateTokens = (request) =>
    generateTokens({
      ...request,
      onPromptLogprobs: (tokens) =>
        request.onPromptLogprobs?.(
          tokens.map((token) => ({
            ...token,
            alternatives: Array.from({ length: request.promptAlternatives ?? 0 }, (_, rank) => ({
              tokenId: token.tokenId - 3 + rank,
              logprob: -1 - rank,
            })),
          })),
        ),
    });
  const { choices } = await new Completions(model).create({ prompt: [104, 105], prompt_logprobs: most });
  const [, listed] = choices[0]?.prompt_logprobs ?? [];
  const ranks = Object.fromEntries(Object.entries(listed ?? {}).map(([id, { rank }]) => [id, rank]));
  const likeliest = Array.from({ length: most }, (_, index) => [102 + index, 1 + index] as const);
  expect(ranks).toEqual({ 105: 4, ...Object.fromEntries(likeliest) });
});

test("prompt_logprobs and return_token_ids have vLLM's form", async () => {
  const { model } = fakeModel("b");
  const request = { prompt: [104, 105], prompt_logprobs: 2, return_token_ids: true };
  const { choices } = await new Completions(model).create(request);
  expect(choices).toEqual([
    {
      index: 0,
      text: "b",
      logprobs: null,
      finish_reason: "stop",
      prompt_token_ids: [104, 105],
      token_ids: [98, END],
      prompt_logprobs: [
        null,
        {
          105: { logprob: -1, rank: 1, decoded_token: "i" },
          106: { logprob: -2, rank: 2, decoded_token: "j" },
        },
      ],
    },
  ]);
});

test("an engine without a prompt's log-probabilities refuses to report them", async () => {
  const { model, source } = fakeModel("b");
  const tokens = {
    generateTokens: (request: TokenRequest) => source.generateTokens({ ...request, promptLogprobs: undefined }),
  };
  const answer = new Completions({ ...model, tokens }).create({ prompt: "hi", echo: true, logprobs: 0 });
  await expect(answer).rejects.toMatchObject({ status: 400, param: "prompt_logprobs" });
  expect(source.running).toBe(0);
});

test("stop strings and special tokens can be part of the text", async () => {
  const text = async (answer: string, params: Partial<CompletionCreateParamsNonStreaming>): Promise<string> =>
    (await new Completions(fakeModel(answer).model).create({ prompt: "x", ...params })).choices[0]?.text ?? "";
  expect(await text("abcd", { stop: "bc" })).toBe("a");
  expect(await text("abcd", { stop: "bc", include_stop_str_in_output: true })).toBe("abc");
  expect(await text("x", { include_stop_str_in_output: true })).toBe("x");
  expect(await text("x", { include_stop_str_in_output: true, skip_special_tokens: false })).toBe("x<s>");
});

test("a completion can have a format", async () => {
  const specs: unknown[] = [];
  const grammar: Model["grammar"] = {
    constraint: (spec, maxTokens) => {
      specs.push(spec, maxTokens);
      return Promise.resolve(undefined);
    },
  };
  const request = { prompt: [104], max_tokens: 7, response_format: { type: "regex", pattern: "a+" } } as const;
  await new Completions({ ...fakeModel("a").model, grammar }).create(request);
  expect(new Set(specs)).toEqual(new Set([{ kind: "regex", pattern: "a+" }, 7]));
});

test.each([
  [{ suffix: "a" }, "suffix"],
  [{ best_of: 2 }, "best_of"],
  [{ prompt: [] }, "prompt"],
  [{ prompt: null }, "prompt"],
  [{ prompt: ["a", 1] }, "prompt"],
])("unsupported parameters are errors: %j", async (wrong, param) => {
  const answer = new Completions(fakeModel("x").model).create({
    prompt: "a",
    ...wrong,
  } as CompletionCreateParamsNonStreaming);
  await expect(answer).rejects.toMatchObject({ status: 400, param });
});
