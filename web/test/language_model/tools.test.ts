// The Prompt API's tools: the model calls functions of the page until it answers.

import { expect, test } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type { LanguageModel, LanguageModelCreateOptions, LanguageModelTool } from "../../src/language_model/index.js";
import { createLanguageModel } from "../../src/language_model/index.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { formatOf } from "../text/tool_formats.js";
import { toolGrammar } from "../../src/text/tools.js";
import type { FakeSource } from "../api/fake_model.js";
import { FakeSource as Source, fakeEngine, modelOf, promptText } from "../api/fake_model.js";

const call = (name: string, input: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: input })}\n</tool_call>`;

interface Tools {
  readonly engine: EngineApi;
  readonly source: FakeSource;
  readonly prompts: () => readonly string[];
}

function calling(answers: readonly string[], tools = true): Tools {
  const source = new Source(answers);
  const grammar = (...params: Parameters<typeof toolGrammar> extends [unknown, ...infer Rest] ? Rest : never) =>
    toolGrammar(formatOf("hermes"), ...params);
  const model = modelOf(source, {
    tools: { parser: () => new ToolCallStream(formatOf("hermes")), grammar: grammar as never },
  });
  const engine = fakeEngine(model);
  return {
    engine: { ...engine, info: { ...engine.info, tools } },
    source,
    prompts: () => source.requests.map((request) => promptText(model, request)),
  };
}

const ADD: LanguageModelTool = {
  name: "add",
  description: "Add two numbers.",
  inputSchema: { type: "object", properties: { a: { type: "number" }, b: { type: "number" } }, required: ["a", "b"] },
  execute: ({ a, b }: { a: number; b: number }) => Promise.resolve(`${a + b}`),
};

async function session({ engine }: Tools, options: LanguageModelCreateOptions = {}): Promise<LanguageModel> {
  const expected = {
    expectedInputs: [{ type: "text" }, { type: "tool-response" }],
    expectedOutputs: [{ type: "text" }, { type: "tool-call" }],
  };
  return createLanguageModel(engine).create({ tools: [ADD], ...expected, ...options });
}

test("calls run until the model answers, and the conversation contains them", async () => {
  const made = calling([call("add", { a: 1, b: 2 }), call("add", { a: 3, b: 4 }), "10 in all", "yes"]);
  const chat = await session(made);
  expect(await chat.prompt("1 + 2 + 3 + 4?")).toBe("10 in all");
  expect(await chat.prompt("sure?")).toBe("yes");
  const first = "[user]1 + 2 + 3 + 4?[assistant]";
  expect(made.prompts()).toEqual([
    first,
    `${first}[tool]3[assistant]`,
    `${first}[tool]3[assistant][tool]7[assistant]`,
    `${first}[tool]3[assistant][tool]7[assistant]10 in all[user]sure?[assistant]`,
  ]);
});

test("the calls of one answer run at the same time, on a clone too, and only text is streamed", async () => {
  const chat = await (
    await session(calling([`so: ${call("add", { a: 1, b: 1 })}\n${call("add", { a: 2, b: 2 })}`, "2, 4"]), {
      tools: [{ ...ADD, execute: () => new Promise((resolve) => waiting.push(resolve)) }],
    })
  ).clone();
  const waiting: ((text: string) => void)[] = [];
  const pieces: string[] = [];
  const reading = (async () => {
    for await (const piece of chat.promptStreaming("x")) pieces.push(piece);
  })();
  await expect.poll(() => waiting.length).toBe(2);
  for (const resolve of waiting) resolve("done");
  await reading;
  expect(pieces.join("")).toMatch(/^so:\s*2, 4$/);
});

test.each<[string, string, Partial<LanguageModelTool>, string]>([
  ["throws", call("add", {}), { execute: () => Promise.reject(new Error("no network")) }, '{"error":"no network"}'],
  ["does not exist", call("sub", {}), {}, '{"error":"Unknown tool \'sub\'; the tools are add"}'],
  ["returns an object", call("add", {}), { execute: () => ({ sum: 3 }) }, '{"sum":3}'],
  ["returns nothing", call("add", {}), { execute: () => undefined }, "null"],
])("the model receives the result if a tool %s", async (_, written, change, result) => {
  const made = calling([written, "ok"]);
  expect(await (await session(made, { tools: [{ ...ADD, ...change }] })).prompt("x")).toBe("ok");
  expect(made.prompts()[1]).toContain(`[tool]${result}[assistant]`);
});

test("a model that only calls tools is stopped, and the session does not change", async () => {
  const made = calling([call("add", { a: 1, b: 2 })]);
  const chat = await session(made);
  const endless = Array.from({ length: 40 }, () => call("add", { a: 1, b: 2 }));
  const looping = calling(endless);
  await expect((await session(looping)).prompt("x")).rejects.toMatchObject({
    name: "OperationError",
    message: expect.stringContaining("16 times") as string,
  });
  expect(looping.source.requests.length).toBe(17);
  expect(chat.contextUsage).toBe(0);
});

test("an abort ends a tool that hangs", async () => {
  const chat = await session(calling([call("add", {}), "ok"]), {
    tools: [{ ...ADD, execute: () => new Promise(() => undefined) }],
  });
  await expect(chat.prompt("x", { signal: AbortSignal.timeout(30) })).rejects.toHaveProperty("name", "TimeoutError");
  expect(await chat.prompt("y")).toBe("ok");
});

test.each<[string, object, string, string]>([
  ["two tools with one name", { tools: [ADD, ADD] }, "TypeError", "Two tools have the name 'add'"],
  ["a tool without a description", { tools: [{ ...ADD, description: undefined }] }, "TypeError", "a description"],
  [
    "an execute that is not a function",
    { tools: [{ ...ADD, execute: 3 }] },
    "TypeError",
    "The tool 'add' needs `execute`, the function that runs",
  ],
  [
    "a tool without execute, which the specification requires",
    { tools: [{ ...ADD, execute: undefined }] },
    "TypeError",
    "The tool 'add' needs `execute`, the function that runs",
  ],
  ["tool calls without tools", { tools: [] }, "NotSupportedError", "reads and writes text"],
])("create rejects %s", async (_, options, name, message) => {
  await expect(session(calling(["x"]), options as LanguageModelCreateOptions)).rejects.toMatchObject({
    name,
    message: expect.stringContaining(message) as string,
  });
});

test("a model that cannot call tools is unavailable if tools are passed", async () => {
  const factory = createLanguageModel(calling(["x"], false).engine);
  expect([await factory.availability({ tools: [ADD] }), await factory.availability()]).toEqual([
    "unavailable",
    "available",
  ]);
  await expect(factory.create({ tools: [ADD] })).rejects.toMatchObject({
    name: "NotSupportedError",
    message: "The model fake cannot call tools",
  });
});
