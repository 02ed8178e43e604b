import { expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import type { ChatCompletionChunk, ChatCompletionCreateParamsNonStreaming } from "../../src/api/types.js";
import { DeviceError } from "../../src/errors.js";
import { FakeSource, fakeModel, modelOf, promptText } from "./fake_model.js";

const messages = [{ role: "user", content: "hi" }] as const;

async function chunksOf(stream: AsyncIterable<ChatCompletionChunk>): Promise<readonly ChatCompletionChunk[]> {
  const chunks: ChatCompletionChunk[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("an answer has all fields of OpenAI's object", async () => {
  const { model } = fakeModel("hello");
  const answer = await new ChatCompletions(model).create({ messages });
  expect(answer).toMatchObject({
    object: "chat.completion",
    model: "fake",
    choices: [
      {
        index: 0,
        message: { role: "assistant", content: "hello", refusal: null },
        logprobs: null,
        finish_reason: "stop",
      },
    ],
    usage: { prompt_tokens: 19, completion_tokens: 5, total_tokens: 24, prompt_tokens_details: { cached_tokens: 3 } },
  });
  expect(answer.id).toMatch(/^chatcmpl-/);
  expect(answer.timings.time_to_first_token_ms).toBeGreaterThan(0);
  expect(answer.timings.tokens_per_second).toBeGreaterThan(0);
});

test("a stream starts with the role, continues with text, and ends with finish reason and timings", async () => {
  const chunks = await chunksOf(await new ChatCompletions(fakeModel("é!").model).create({ messages, stream: true }));
  expect(chunks.map(({ choices }) => [choices[0]?.delta, choices[0]?.finish_reason])).toEqual([
    [{ role: "assistant", content: "" }, null],
    [{ content: "é" }, null],
    [{ content: "!" }, null],
    [{}, "stop"],
  ]);
  expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);
  expect(chunks.every((chunk) => !("usage" in chunk))).toBe(true);
  expect(chunks.at(-1)?.timings?.total_ms).toBeGreaterThan(0);
});

test("with include_usage the last chunk has the usage and no choices, and usage is null before", async () => {
  const chunks = await chunksOf(
    await new ChatCompletions(fakeModel("ab").model).create({
      messages,
      stream: true,
      stream_options: { include_usage: true },
    }),
  );
  expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 2 } });
  expect(chunks.slice(0, -1).every(({ usage }) => usage === null)).toBe(true);
});

test("messages of all roles and text parts reach the template, and developer becomes system", async () => {
  const { model, source } = fakeModel("x");
  await new ChatCompletions(model).create({
    messages: [
      { role: "developer", content: "be short" },
      {
        role: "user",
        content: [
          { type: "text", text: "a" },
          { type: "text", text: "b" },
        ],
      },
      {
        role: "assistant",
        content: null,
        tool_calls: [{ id: "1", type: "function", function: { name: "f", arguments: "{}" } }],
      },
      { role: "tool", content: "42", tool_call_id: "1" },
    ],
  });
  expect(promptText(model, source.requests[0])).toBe("[system]be short[user]ab[assistant][tool]42[assistant]");
});

test("continue_final_message continues the start of an answer", async () => {
  const { model, source } = fakeModel("x");
  await new ChatCompletions(model).create({
    messages: [...messages, { role: "assistant", content: "Dear " }],
    continue_final_message: true,
  });
  expect(promptText(model, source.requests[0])).toBe("[user]hi[assistant]Dear ");
});

test("parameters reach the engine, and the default temperature is OpenAI's 1", async () => {
  const { model, source } = fakeModel("x");
  const completions = new ChatCompletions(model);
  await completions.create({
    messages,
    n: 2,
    seed: -1,
    top_p: 0.5,
    top_k: 4,
    min_p: 0.1,
    repetition_penalty: 1.1,
    frequency_penalty: 1,
    presence_penalty: -1,
  });
  await completions.create({
    messages,
    temperature: 0,
    logit_bias: { "5": -100 },
    max_completion_tokens: 7,
    priority: 2,
    top_p: null,
  });
  const [first, second, third] = source.requests;
  expect(first?.sampling).toMatchObject({
    temperature: 1,
    topP: 0.5,
    topK: 4,
    minP: 0.1,
    repetitionPenalty: 1.1,
    frequencyPenalty: 1,
    presencePenalty: -1,
  });
  expect([first?.sampling?.seed, second?.sampling?.seed]).toEqual([2 ** 32 - 1, 0]);
  expect(third).toMatchObject({
    maxTokens: 7,
    priority: 2,
    sampling: { temperature: 0, logitBias: new Map([[5, -100]]) },
  });
  expect(third?.sampling?.topP).toBeUndefined();
});

test("fields that clients send back from an answer are accepted, unless they would change the answer", async () => {
  const { model, source } = fakeModel("x");
  const completions = new ChatCompletions(model);
  const called = { name: "f", arguments: "{}" };
  const plain = {
    role: "assistant",
    content: "yes",
    tool_calls: [{ id: "1", type: "function", function: called }],
  } as const;
  const extra = {
    refusal: null,
    parsed: { a: 1 },
    annotations: [],
    audio: null,
    name: null,
    provider_specific_fields: { refusal: null },
  };
  const sentBack = {
    ...plain,
    ...extra,
    tool_calls: [{ ...plain.tool_calls[0], index: 0, function: { ...called, parsed_arguments: {} } }],
  };
  for (const message of [plain, sentBack])
    await completions.create({ messages: [...messages, message as typeof plain] });
  expect(promptText(model, source.requests[1])).toBe(promptText(model, source.requests[0]));
  await completions.create({
    messages: [{ role: "assistant", content: "yes", tool_calls: null as never }],
    top_k: -1,
    store: false,
    prediction: {},
  });
  expect(source.requests[2]?.sampling?.topK).toBe(0);
  for (const unknown of [
    { annotations: [{ type: "x" }] },
    { reasoning_content: { a: 1 } as never },
    { provider_specific_fields: { a: 1 } },
  ]) {
    await expect(completions.create({ messages: [{ ...plain, ...unknown }] })).rejects.toThrow(Object.keys(unknown)[0]);
  }
});

test("n choices run at the same time and are identified by index", async () => {
  const { model, source } = fakeModel("one", "three", "x");
  const { choices, usage } = await new ChatCompletions(model).create({ messages, n: 3 });
  expect(choices.map(({ index, message }) => [index, message.content])).toEqual([
    [0, "one"],
    [1, "three"],
    [2, "x"],
  ]);
  expect(source.most).toBe(3);
  expect(usage).toMatchObject({ prompt_tokens: 19, completion_tokens: 9 });
});

test("max_tokens ends an answer with the finish reason length", async () => {
  const { choices } = await new ChatCompletions(fakeModel("hello").model).create({ messages, max_tokens: 2 });
  expect(choices[0]).toMatchObject({ message: { content: "he" }, finish_reason: "length" });
});

test("a stop string may be complete only when the text that was held back comes out", async () => {
  const { choices } = await new ChatCompletions(fakeModel("é").model).create({
    messages,
    max_tokens: 1,
    stop: "\ufffd",
  });
  expect(choices[0]).toMatchObject({ message: { content: "" }, finish_reason: "stop" });
});

test("a stop string ends generation, and none of its characters is streamed", async () => {
  const { model, source } = fakeModel("abc###def");
  const chunks = await chunksOf(
    await new ChatCompletions(model).create({ messages, stream: true, stop: ["###", "zzz"] }),
  );
  expect(chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("")).toBe("abc");
  expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("stop");
  expect([source.tokens, source.running]).toEqual([6, 0]);
});

test("logprobs come with their text and its bytes, and a stop string has none", async () => {
  const { choices } = await new ChatCompletions(fakeModel("é##!").model).create({
    messages,
    logprobs: true,
    top_logprobs: 2,
    stop: "##",
  });
  expect(choices[0]?.logprobs?.content).toEqual([
    {
      token: "\ufffd",
      token_id: 0xc3,
      bytes: [0xc3],
      logprob: -1,
      top_logprobs: [expect.objectContaining({ bytes: [0xc3] }), expect.objectContaining({ logprob: -2 })],
    },
    {
      token: "\ufffd",
      token_id: 0xa9,
      bytes: [0xa9],
      logprob: -1,
      top_logprobs: [expect.objectContaining({ bytes: [0xa9] }), expect.objectContaining({ logprob: -2 })],
    },
  ]);
});

test("streamed logprobs add up to those of the complete answer", async () => {
  const request = { messages, logprobs: true, stop: "zz" } as const;
  const chunks = await chunksOf(await new ChatCompletions(fakeModel("azb").model).create({ ...request, stream: true }));
  const complete = await new ChatCompletions(fakeModel("azb").model).create(request);
  expect(chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? [])).toEqual(
    complete.choices[0]?.logprobs?.content,
  );
  expect(complete.choices[0]?.logprobs?.content?.map(({ token }) => token)).toEqual(["a", "z", "b"]);
});

test("leaving the loop ends generation", async () => {
  const { model, source } = fakeModel("hello", "world");
  for await (const chunk of await new ChatCompletions(model).create({ messages, stream: true, n: 2 })) {
    if (chunk.choices[0]?.delta.content !== "") break;
  }
  expect(source.running).toBe(0);
  expect(source.tokens).toBeLessThan(6);
});

test("a stream that nobody reads generates nothing, and a stream cannot be read twice", async () => {
  const { model, source } = fakeModel("hello");
  const stream = await new ChatCompletions(model).create({ messages, stream: true });
  expect(source.requests).toEqual([]);
  await chunksOf(stream);
  await expect(chunksOf(stream)).rejects.toThrow("was iterated before");
});

test("a stream's controller ends it without an error", async () => {
  const { model, source } = fakeModel("hello");
  const stream = await new ChatCompletions(model).create({ messages, stream: true });
  let text = "";
  for await (const { choices } of stream) {
    text += choices[0]?.delta.content ?? "";
    if (text === "he") stream.controller.abort();
  }
  expect([text, source.running]).toEqual(["he", 0]);
});

test.each(["options", "params"])("a signal in the %s ends the answer with its reason", async (where) => {
  const { model, source } = fakeModel("hello");
  const controller = new AbortController();
  const request = where === "params" ? { messages, signal: controller.signal } : { messages };
  const answer = new ChatCompletions(model).create(request, where === "options" ? { signal: controller.signal } : {});
  setTimeout(() => {
    controller.abort(new Error("enough"));
  }, 2);
  await expect(answer).rejects.toThrow("enough");
  expect(source.running).toBe(0);
});

test("a prompt's log-probabilities are reported once for all answers, before the first token", async () => {
  const { model, source } = fakeModel("ab");
  const reported: (readonly number[])[] = [];
  const promptLogprobs = { tokens: 2, onLogprobs: (values: readonly number[]) => reported.push(values) };
  const counts: number[] = [];
  for await (const { choices } of await new ChatCompletions(model).create(
    { messages, n: 2, stream: true },
    { promptLogprobs },
  )) {
    if (choices[0]?.delta.content !== undefined) counts.push(reported.length);
  }
  // Each answer has a chunk for its role and two for its tokens.
  expect(counts).toEqual([1, 1, 1, 1, 1, 1]);
  // "t]", the end of the template.
  expect(reported).toEqual([[-116, -93]]);
  expect(source.requests.map((request) => request.promptLogprobs)).toEqual([2, undefined]);
});

test("an interrupt ends the answer at this point, with its text, usage and timings", async () => {
  const { model, source } = fakeModel("hello");
  const interrupt = new AbortController();
  const stream = await new ChatCompletions(model).create(
    { messages, stream: true, stream_options: { include_usage: true } },
    { interrupt: interrupt.signal },
  );
  let text = "";
  const reasons: unknown[] = [];
  let tokens = 0;
  for await (const { choices, usage } of stream) {
    text += choices[0]?.delta.content ?? "";
    reasons.push(choices[0]?.finish_reason);
    tokens += usage?.completion_tokens ?? 0;
    if (text === "he") interrupt.abort();
  }
  expect(text).toMatch(/^hel?$/);
  expect(reasons).toContain("stop");
  expect([tokens, source.running]).toEqual([text.length, 0]);
});

test("an error of the engine is thrown after every other choice has ended", async () => {
  const source = new FakeSource(["ab"], new DeviceError("gone"));
  const answer = new ChatCompletions(modelOf(source)).create({ messages, n: 2 });
  await expect(answer).rejects.toMatchObject({
    status: 500,
    code: "device_error",
    type: "server_error",
    message: "gone",
  });
  expect(source.running).toBe(0);
});

test.each([
  [{ audio: {} }, "audio", "'audio' is not supported; supported: messages"],
  [{ functions: [{ name: "f" }], tool_choice: "auto" }, "functions", "use one of the two forms"],
  [{ functions: [{ name: "f", strict: true }] }, "functions[0]", "{ name, description, parameters }"],
  [{ functions: [{ name: "f" }], function_call: { name: "g" } }, "function_call", "but functions has f"],
  [{ function_call: { name: "f" } }, "function_call", "but functions has none"],
  [{ function_call: "required" }, "function_call", '"none", "auto" or an object with a name'],
  [{ constructor: 1 }, "constructor", "'constructor' is not supported"],
  [{ temperature: 3 }, "temperature", "temperature is 3, it must be a number from 0 to 2"],
  [{ n: 0 }, "n", "an integer from 1 to 128"],
  [{ stop: Array.from({ length: 17 }, String) }, "stop", "a string or a list of at most 16, each a string"],
  [{ stop: ["a", ""] }, "stop", "without empty strings"],
  [{ logit_bias: { 5: 101 } }, "logit_bias", "logit_bias.5 is 101, it must be a number from -100 to 100"],
  [{ logit_bias: { a: 1 } }, "logit_bias", "from token ids"],
  [{ top_logprobs: 2 }, "top_logprobs", "needs logprobs: true"],
  [{ max_tokens: 1, max_completion_tokens: 1 }, "max_tokens", "mean the same"],
  [{ store: true }, "store", "it must be false"],
  [{ stream_options: { include_obfuscation: true } }, "stream_options", "include_usage"],
  [{ response_format: { type: "json_object" } }, "response_format", "needs an engine with grammars"],
  [
    { response_format: { type: "json_schema", json_schema: { name: "x" } } },
    "response_format",
    "needs json_schema.schema",
  ],
  [{ response_format: { type: "xml" } }, "response_format", 'has type "xml"'],
  [{ tools: [{ type: "function", function: { name: "f" } }] }, "tools", "needs a chat template that knows tools"],
  [{ tools: [{ type: "custom" }] }, "tools[0]", 'it must be { type: "function"'],
  [{ tool_choice: "required" }, "tool_choice", "there are no tools"],
  [{ messages: [] }, "messages", "messages is empty"],
  [{ messages: [{ role: "critic", content: "a" }] }, "messages[0]", 'has role "critic"'],
  [
    { messages: [{ role: "user", content: [{ type: "image_url" }] }] },
    "messages[0].content[0]",
    "is a picture, and this model reads texts only",
  ],
  [{ messages: [{ role: "user" }] }, "messages[0].content", "must be a string"],
  [{ messages: [{ role: "assistant", content: "a", audio: { id: "1" } }] }, "messages[0]", "has 'audio'"],
])("unknown parameters and values out of range are errors with OpenAI's fields: %#", async (wrong, param, message) => {
  const { model, source } = fakeModel("x");
  const answer = new ChatCompletions(model).create({
    messages,
    ...wrong,
  } as unknown as ChatCompletionCreateParamsNonStreaming);
  await expect(answer).rejects.toMatchObject({
    status: 400,
    type: "invalid_request_error",
    code: "request_error",
    param,
  });
  await expect(answer).rejects.toThrow(message);
  expect(source.requests).toEqual([]);
});

test("parameters without effect are accepted", async () => {
  const harmless = {
    model: "gpt-4o",
    user: "u",
    metadata: { a: "b" },
    store: false,
    service_tier: "auto",
    modalities: ["text"],
  };
  const { choices } = await new ChatCompletions(fakeModel("x").model).create({ messages, ...harmless });
  expect(choices[0]?.message.content).toBe("x");
});
