// Chats with tools or a format: calls parsed from the text, and constraints that force them.

import { expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import { asToolMessages } from "../../src/api/functions.js";
import type { ToolCallParser } from "../../src/api/model.js";
import type { ChatCompletionTool } from "../../src/api/types.js";
import { RequestError } from "../../src/errors.js";
import type { GrammarSource } from "../../src/shared/grammar/source.js";
import type { ToolCallEvent } from "../../src/text/tool_call_stream.js";
import { FakeSource, modelOf } from "./fake_model.js";

const messages = [{ role: "user", content: "hi" }] as const;
const WEATHER_FUNCTION = { name: "weather", parameters: { type: "object" } };
const WEATHER: ChatCompletionTool = { type: "function", function: WEATHER_FUNCTION };

/** Calls have the form <name arguments>, and the arguments arrive one character at a time. */
function angleParser(): ToolCallParser {
  let index = -1;
  let inside = false;
  let name: string | null = null;
  let hasText = false;
  return {
    get called() {
      return index >= 0;
    },
    get complete() {
      return index >= 0 && !inside && !hasText;
    },
    undecided: "",
    feed: (text) =>
      Array.from(text).flatMap((character): ToolCallEvent[] => {
        if (character === "<") {
          [inside, name] = [true, ""];
          index++;
        } else if (character === ">") {
          [inside, hasText] = [false, false];
        } else if (!inside) {
          hasText = true;
          return [{ type: "text", text: character }];
        } else if (name === null) {
          return [{ type: "arguments", index, text: character }];
        } else if (character === " ") {
          const event: ToolCallEvent = { type: "tool_call", index, id: `call_${index}`, name };
          name = null;
          return [event];
        } else {
          name += character;
        }
        return [];
      }),
    finish: () => [],
  };
}

function withTools(...answers: readonly string[]) {
  const specs: GrammarSource[] = [];
  let open = 0;
  const source = new FakeSource(answers);
  const model = modelOf(source, {
    tools: {
      parser: angleParser,
      grammar: (tools, choice) => ({ kind: "json_schema", schema: { tools: tools.length, choice } }),
    },
    grammar: {
      constraint: (spec) => {
        if (spec !== undefined) specs.push(spec);
        open++;
        return Promise.resolve({
          mask: () => null,
          accept: () => undefined,
          finished: false,
          complete: false,
          dispose: () => open--,
        });
      },
    },
  });
  return { completions: new ChatCompletions(model), source, specs, open: () => open };
}

test("tool calls are parsed from the text, complete and streamed", async () => {
  const { completions } = withTools("ok <weather {1}><weather {2}>");
  const { choices } = await completions.create({ messages, tools: [WEATHER] });
  expect(choices[0]).toMatchObject({
    message: {
      content: "ok ",
      tool_calls: [
        { id: "call_0", type: "function", function: { name: "weather", arguments: "{1}" } },
        { id: "call_1", type: "function", function: { name: "weather", arguments: "{2}" } },
      ],
    },
    finish_reason: "tool_calls",
  });
  const deltas = [];
  for await (const chunk of await completions.create({ messages, tools: [WEATHER], stream: true }))
    deltas.push(...(chunk.choices[0]?.delta.tool_calls ?? []));
  expect(deltas.slice(0, 2)).toEqual([
    { index: 0, id: "call_0", type: "function", function: { name: "weather", arguments: "" } },
    { index: 0, function: { arguments: "{" } },
  ]);
});

test.each([
  ["<weather {1}> and", 13, "tool_calls"],
  ["<weather {1}> and", 9, "length"],
  ["<weather {1}> and", 15, "length"],
])("%j, truncated after %i tokens, ends with %s", async (text, maxTokens, reason) => {
  const { choices } = await withTools(text).completions.create({ messages, tools: [WEATHER], max_tokens: maxTokens });
  expect(choices[0]?.finish_reason).toBe(reason);
});

test("an answer with only calls has null content, and parallel_tool_calls: false keeps the first call", async () => {
  const { completions } = withTools("<weather {1}><weather {2}>");
  const { choices } = await completions.create({ messages, tools: [WEATHER], parallel_tool_calls: false });
  expect(choices[0]?.message.content).toBeNull();
  expect(choices[0]?.message.tool_calls?.length).toBe(1);
});

test("functions are the older form of tools, of which an answer calls one", async () => {
  const { completions, specs } = withTools("<weather {1}><weather {2}>");
  const { choices } = await completions.create({
    messages,
    functions: [WEATHER_FUNCTION],
    function_call: { name: "weather" },
  });
  expect(choices[0]).toEqual({
    index: 0,
    message: {
      role: "assistant",
      content: null,
      refusal: null,
      function_call: { name: "weather", arguments: "{1}" },
    },
    logprobs: null,
    finish_reason: "function_call",
  });
  expect(specs[0]).toMatchObject({ schema: { tools: 1, choice: { type: "function", function: { name: "weather" } } } });
  const chunks = [];
  for await (const chunk of await completions.create({ messages, functions: [WEATHER_FUNCTION], stream: true }))
    chunks.push(chunk);
  const deltas = chunks.flatMap(({ choices: [choice] }) => choice?.delta.function_call ?? []);
  expect(deltas[0]).toEqual({ name: "weather", arguments: "" });
  expect(deltas.map(({ arguments: text = "" }) => text).join("")).toBe("{1}");
  expect(chunks.some(({ choices: [choice] }) => choice?.delta.tool_calls)).toBe(false);
  expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("function_call");
});

test("calls and results of functions are read as those of tools", () => {
  const call = { name: "weather", arguments: "{}" };
  const called = { role: "assistant", content: null, function_call: call } as const;
  const result = { role: "function", name: "weather", content: "warm" } as const;
  const read = asToolMessages([...messages, called, result, called]);
  expect(read.slice(messages.length)).toEqual([
    { role: "assistant", content: null, tool_calls: [{ id: "call00001", type: "function", function: call }] },
    { role: "tool", name: "weather", content: "warm", tool_call_id: "call00001" },
    { role: "assistant", content: null, tool_calls: [{ id: "call00003", type: "function", function: call }] },
  ]);
  const both = { ...called, tool_calls: [{ id: "a", type: "function", function: call }] };
  expect(() => asToolMessages([both])).toThrow("messages[0].function_call and tool_calls mean the same");
});

test("tool_choice none leaves the text unchanged, and required forces a call with a grammar", async () => {
  const { completions, specs, source, open } = withTools("<weather {1}>");
  const { choices } = await completions.create({ messages, tools: [WEATHER], tool_choice: "none" });
  expect(choices[0]).toMatchObject({ message: { content: "<weather {1}>" }, finish_reason: "stop" });
  expect(specs).toEqual([]);
  await completions.create({ messages, tools: [WEATHER], tool_choice: "required" });
  expect(specs.at(-1)).toMatchObject({ schema: { tools: 1, choice: "required" } });
  expect(source.requests.at(-1)?.constraint).toBeDefined();
  expect(open()).toBe(0);
});

test.each([
  [{ type: "json_object" }, { kind: "json_object" }],
  [
    { type: "json_schema", json_schema: { name: "n", schema: { type: "string" } } },
    { kind: "json_schema", schema: { type: "string" } },
  ],
  [
    { type: "regex", pattern: "a+" },
    { kind: "regex", pattern: "a+" },
  ],
  [
    { type: "grammar", grammar: 'root ::= "a"' },
    { kind: "ebnf", grammar: 'root ::= "a"' },
  ],
] as const)(
  "response_format %j gives each choice a constraint of its own, and frees them all",
  async (format, spec) => {
    const { completions, specs, source, open } = withTools("x");
    await completions.create({ messages, response_format: format, n: 2 });
    expect(specs.at(-1)).toEqual(spec);
    expect(new Set(source.requests.map(({ constraint }) => constraint)).size).toBe(2);
    expect(open()).toBe(0);
  },
);

test("a json_object with a schema is an error and is not answered without the schema", async () => {
  const { completions } = withTools("x");
  const format = { type: "json_object", schema: { type: "object" } } as { type: "json_object" };
  await expect(completions.create({ messages, response_format: format })).rejects.toThrow(
    "response_format with a schema needs type json_schema",
  );
});

test("a schema that cannot be compiled rejects create, streamed or not", async () => {
  const refused = { grammar: { constraint: () => Promise.reject(new RequestError("bad schema")) } };
  const completions = new ChatCompletions(modelOf(new FakeSource(["x"]), refused));
  await expect(
    completions.create({ messages, response_format: { type: "json_object" }, stream: true }),
  ).rejects.toThrow("bad schema");
});
