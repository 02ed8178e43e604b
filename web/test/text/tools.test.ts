import { readFileSync } from "node:fs";

import fc from "fast-check";
import { expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import type { Message } from "../../src/text/chat_template.js";
import type { ToolCallEvent } from "../../src/text/tool_call_stream.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import type { Tool } from "../../src/text/tools.js";
import { toolGrammar } from "../../src/text/tools.js";
import { runs } from "../exhaustive.js";
import { demoGrammars, pick } from "../grammar/pick.js";
import { templateOf } from "./template_trees.js";
import { CASES as VECTOR_CASES, FORMATS, formatOf } from "./tool_formats.js";

interface Vectors {
  readonly templates: Readonly<Record<string, string>>;
  readonly special_tokens: Readonly<Record<string, string>>;
  readonly tools: readonly Tool[];
  readonly chats: Readonly<Record<string, readonly Message[]>>;
  readonly cases: readonly {
    readonly template: string;
    readonly chat: string;
    readonly tools: boolean;
    readonly text: string;
  }[];
}
const VECTORS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/chat_tools.json", import.meta.url), "utf8"),
) as Vectors;

test.each(VECTORS.cases)(
  "the template $template renders $chat as transformers does (tools: $tools)",
  ({ template, chat, tools, text }) => {
    const rendered = templateOf(VECTORS.templates[template] ?? "", VECTORS.special_tokens, formatOf(template));
    expect(rendered.render(VECTORS.chats[chat] ?? [], tools ? { tools: VECTORS.tools } : {})).toBe(text);
  },
);

const CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}";
const TEMPLATE = `{{ tools }}<tool_call>{% for m in messages %}{{ m.content }}${CALLS}{% endfor %}`;
const call = (args: unknown): Message => ({
  role: "assistant",
  content: null,
  tool_calls: [{ id: "1", type: "function", function: { name: "f", arguments: args } }],
});

test("arguments are given to the template as an object, however they came", () => {
  const template = templateOf(TEMPLATE, {});
  for (const args of ['{"a": 1}', { a: 1 }]) expect(template.render([call(args)])).toContain('{"a": 1}');
  expect(() => template.render([call("{")])).toThrow("messages[0].tool_calls must be");
  expect(() => template.render([{ role: "assistant", content: null }])).toThrow("messages[0] must be");
});

test("tools for a template that has none, and wrong tools, are RequestErrors", () => {
  const tool: Tool = { type: "function", function: { name: "f" } };
  expect(() => templateOf("{{ messages }}", {}).render([], { tools: [tool] })).toThrow("chat template has no tools");
  expect(() => templateOf(TEMPLATE, {}).render([], { tools: [tool, tool] })).toThrow("two functions of the name 'f'");
  expect(() =>
    templateOf(TEMPLATE, {}).render([], { tools: [{ type: "function", function: { name: "a b" } }] }),
  ).toThrow(RequestError);
  expect(() => toolGrammar(formatOf("hermes"), [tool], { type: "function", function: { name: "g" } })).toThrow(
    "names 'g'",
  );
  expect(() => toolGrammar(formatOf("hermes"), [], "required")).toThrow("needs tools");
});

/** The joined output: texts, and calls with their arguments. */
function outcome(format: string, pieces: readonly string[], tools: readonly Tool[] = []): unknown[] {
  const stream = new ToolCallStream(formatOf(format), tools, () => "id");
  const result: { text?: string; name?: string; arguments?: string }[] = [];
  const add = (event: ToolCallEvent): void => {
    const last = result.at(-1);
    if (event.type === "tool_call") {
      expect(event.index).toBe(result.filter(({ name }) => name !== undefined).length);
      result.push({ name: event.name, arguments: "" });
    } else if (event.type === "arguments" && last !== undefined) last.arguments = (last.arguments ?? "") + event.text;
    else if (last?.text !== undefined) last.text += event.text;
    else result.push({ text: event.text });
  };
  for (const piece of pieces) stream.feed(piece).forEach(add);
  stream.finish().forEach(add);
  return result;
}

const WEATHER = { name: "weather", arguments: '{"city": "a } \\" {", "days": [1, {"x": null}]}' };
const CASES: readonly (readonly [string, string, readonly unknown[]])[] = [
  ["hermes", "just text < and <tool", [{ text: "just text < and <tool" }]],
  ["hermes", `<tool_call>\n{"name": "weather", "arguments": ${WEATHER.arguments}}\n</tool_call>`, [WEATHER]],
  [
    "hermes",
    `Well.\n<tool_call>{"name":"weather","arguments":${WEATHER.arguments}}</tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>`,
    [{ text: "Well.\n" }, WEATHER, { name: "f", arguments: "{}" }],
  ],
  [
    "hermes",
    '\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\nbye',
    [{ name: "f", arguments: "{}" }, { text: "\nbye" }],
  ],
  ["hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [{ name: "f", arguments: '{"a":1}' }]],
  ["hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut', [{ name: "f", arguments: '{"a": "cut' }]],
  ["hermes", "<tool_call>no call</tool_call>", [{ text: "<tool_call>no call</tool_call>" }]],
  [
    "hermes",
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    [{ text: '<tool_call>{"name": "f", "arguments": [1]}</tool_call>' }],
  ],
  ["hermes", '<tool_call>{"name": "f"', [{ text: '<tool_call>{"name": "f"' }]],
  [
    "hermes",
    '<tool_call>oops <tool_call>{"name": "f", "arguments": {}}</tool_call>',
    [{ text: "<tool_call>oops " }, { name: "f", arguments: "{}" }],
  ],
  ["llama3", "just text", [{ text: "just text" }]],
  ["llama3", ' {"name": "weather", "parameters": {"city": "x"}}', [{ name: "weather", arguments: '{"city": "x"}' }]],
  ["llama3", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', [{ name: "f", arguments: "{}" }]],
  [
    "llama3",
    '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": "\\\\"}}\n',
    [
      { name: "f", arguments: "{}" },
      { name: "g", arguments: '{"a": "\\\\"}' },
    ],
  ],
  ["llama3", '{"parameters": {"a": 1}, "name": "f"}', [{ name: "f", arguments: '{"a":1}' }]],
  ["llama3", '{"answer": 42}', [{ text: '{"answer": 42}' }]],
  ["llama3", '{"name": "f"}', [{ text: '{"name": "f"}' }]],
  ["llama3", 'see {"name": "f", "parameters": {}}', [{ text: 'see {"name": "f", "parameters": {}}' }]],
  ["llama3", "{", [{ text: "{" }]],
];

test.each(CASES)("%s: %j is read the same however it is cut", (format, text, expected) => {
  expect(outcome(format, [text])).toEqual(expected);
  expect(outcome(format, Array.from(text))).toEqual(expected);
  for (let at = 1; at < text.length; at++)
    expect(outcome(format, [text.slice(0, at), text.slice(at)])).toEqual(expected);
});

test.each(VECTOR_CASES)("$format: the vector $text is read the same however it is cut", (vector) => {
  const { format, text, texts = {} } = vector;
  const tools = Object.entries(texts).map(([name, keys]): Tool => {
    const properties = Object.fromEntries(keys.map((key) => [key, { type: "string" }]));
    return { type: "function", function: { name, parameters: { type: "object", properties } } };
  });
  const expected = vector.expected.map((item) =>
    typeof item === "string" ? { text: item } : { name: item[0], arguments: item[1] },
  );
  expect(outcome(format, [text], tools)).toEqual(expected);
  expect(outcome(format, Array.from(text), tools)).toEqual(expected);
  for (let at = 1; at < text.length; at++)
    expect(outcome(format, [text.slice(0, at), text.slice(at)], tools)).toEqual(expected);
});

test("any text is read the same however it is cut, and is complete if there is no call", () => {
  const heads = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {',
    '{"name": "f", "parameters": {',
    ...Object.values(FORMATS).flatMap(({ marker, begin, close, tokens }) => [marker, begin, close, ...tokens]),
    ...["call:", "f", "<function=f>", "<parameter=a>", "</parameter>", "</function>", "a:", "[", "]", ",", "ü😀"],
  ].filter((head) => head !== "");
  const part = fc.constantFrom(...heads, '"a"', ":", "1", "}", "\\", '"', "\n", ";", "text", "<", "{");
  const formats = fc.constantFrom(...Object.keys(FORMATS));
  fc.assert(
    fc.property(
      formats,
      fc.array(part, { maxLength: 12 }),
      fc.array(fc.nat(80), { maxLength: 6 }),
      (format, parts, cuts) => {
        const text = parts.join("");
        const sorted = [...new Set(cuts.filter((cut) => cut < text.length))].sort((a, b) => a - b);
        const pieces = [0, ...sorted].map((start, index) => text.slice(start, sorted[index]));
        const complete = outcome(format, [text]);
        expect(outcome(format, pieces)).toEqual(complete);
        if (complete.every((item) => (item as { text?: string }).text !== undefined)) {
          expect(
            complete
              .map((item) => (item as { text: string }).text)
              .join("")
              .trim(),
          ).toBe(text.trim());
        }
      },
    ),
    { numRuns: runs(500, 2000) },
  );
});

const TOOLS: readonly Tool[] = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: {
        type: "object",
        properties: { city: { enum: ["Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
        required: ["city"],
      },
    },
  },
  { type: "function", function: { name: "now" } },
];

test.each(Object.keys(FORMATS))(
  "%s: with a tool required, whatever the model picks is calls of the tools",
  async (format) => {
    const grammars = demoGrammars();
    const names = new Set<string>();
    for (let seed = 0; seed < 12; seed++) {
      const source = toolGrammar(
        formatOf(format),
        TOOLS,
        seed < 8 ? "required" : { type: "function", function: { name: "now" } },
      );
      if (source === null) throw new Error("no grammar");
      const constraint = await grammars.constraint(source, 90);
      const { text } = pick(constraint, 90, seed);
      constraint.dispose();
      const calls = outcome(format, [text], TOOLS) as { name: string; arguments: string }[];
      expect(calls.length, text).toBeGreaterThan(0);
      for (const { name, arguments: given } of calls) {
        names.add(name);
        const values = JSON.parse(given) as Record<string, unknown>;
        if (name === "now") expect(values).toEqual({});
        else expect(["Oslo", "Rome"]).toContain(values.city);
        if (seed >= 8) expect(name).toBe("now");
      }
    }
    expect([...names].sort()).toEqual(["now", "weather"]);
    expect(toolGrammar(formatOf(format), TOOLS, "auto")).toBeNull();
  },
);

const CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>';

test.each([
  ["hermes", CALL, true],
  ["hermes", CALL.slice(0, -"}\n</tool_call>".length), true],
  ["hermes", CALL.slice(0, -"}}\n</tool_call>".length), false],
  ["hermes", `${CALL} And so`, false],
  ["hermes", `${CALL}\n<tool_call>`, false],
  ["hermes", "text", false],
  ["llama3", '{"name": "f", "parameters": {"a": 1}', true],
  ["llama3", '{"name": "f", "parameters": {"a": 1', false],
] as const)("in %s, %j ends with a complete call: %s", (format, text, complete) => {
  const stream = new ToolCallStream(formatOf(format));
  stream.feed(text);
  stream.finish();
  expect(stream.complete).toBe(complete);
});
