import { beforeAll, expect, test } from "vitest";

import { sourceRules } from "../../src/shared/grammar/rules.js";
import { GrammarWasm } from "../../src/grammar/wasm.js";
import { toolGrammar } from "../../src/text/tools.js";
import { FORMATS, GRAMMAR, formatOf } from "../text/tool_formats.js";
import { accepts } from "./accepts.js";
import { VOCABULARY } from "./pick.js";

let wasm: GrammarWasm;
beforeAll(async () => {
  wasm = await GrammarWasm.load(VOCABULARY);
});

test.each(Object.keys(FORMATS))("%s: a required call allows what every runtime allows", (name) => {
  const source = toolGrammar(formatOf(name), GRAMMAR.tools, "required");
  if (source === null) throw new Error("no grammar");
  const cases = GRAMMAR.cases.filter(({ format }) => format === name);
  const taken = accepts(
    wasm,
    source,
    cases.map(({ text }) => text),
  );
  expect(cases.filter(({ valid }, index) => valid !== taken[index])).toEqual([]);
});

test.each([
  ["gemma4", { properties: { "a b": { type: "string" } } }, 'the property "a b" cannot be written'],
  ["gemma4", { properties: { a: { const: "<|" } } }, "a constant contains '<|'"],
  ["gemma4", { properties: { a: {} }, additionalProperties: true }, "additionalProperties beside properties"],
  ["gemma4", { patternProperties: { "^a": {} } }, "patternProperties is not supported"],
  ["gemma4", { properties: { a: { type: "string", pattern: "^<\\|$" } } }, "no text of the pattern"],
  ["qwen3_coder", { properties: { "a>": { type: "string" } } }, 'the property "a>" cannot be written'],
  ["qwen3_coder", { anyOf: [{ required: ["a"] }] }, "must be the schema of one object"],
  ["qwen3_coder", { propertyNames: { minLength: 2 } }, "propertyNames is not supported"],
])("%s: %j cannot be written", (name, parameters, message) => {
  const source = toolGrammar(
    formatOf(name),
    [{ type: "function", function: { name: "f", parameters: { type: "object", ...parameters } } }],
    "required",
  );
  if (source === null) throw new Error("no grammar");
  expect(() => sourceRules(source)).toThrow(message);
});
