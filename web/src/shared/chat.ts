// Renders a chat with a chat template's syntax tree, as compiler/runtime/text/chat_template.py does with its source.

import { RequestError, BundleError, messageOf } from "../errors.js";
import type { Tree } from "./template/evaluate.js";
import { evaluate } from "./template/evaluate.js";
import { GLOBALS, Refusal } from "./template/globals.js";
import { dumps, loads } from "./template/json.js";
import type { Value } from "./template/values.js";
import { Dict, TemplateError, isList, truth } from "./template/values.js";

export interface TemplateParts {
  /** The template's Jinja. */
  readonly source: string;
  /** The syntax tree, which compiler/runtime/text/template_tree.py writes. */
  readonly tree: Tree;
  /** The form in which the template reads a message's content. */
  readonly content: "text" | "parts";
  readonly specialTokens: Readonly<Record<string, string>>;
}

export interface Chat {
  readonly messages: readonly Value[];
  readonly tools: readonly Value[] | null;
  /** Further variables of the template, such as enable_thinking. */
  readonly variables: ReadonlyMap<string, Value>;
  readonly addGenerationPrompt: boolean;
}

/** Inserts sentinels into untrusted text, so that it cannot spell control tokens. */
export interface Marker {
  mark(text: string): string;
  /** Also if the entire text is inside a control token. */
  markInfix(text: string): string;
}

const VARIABLES = "chat_template_kwargs";
/** Names of values that a template always receives, here or in transformers. */
const RESERVED = new Set([
  ..."messages tools documents add_generation_prompt continue_final_message chat_template tokenize".split(" "),
  ...["bos", "eos", "pad", "unk"].map((name) => `${name}_token`),
  ...GLOBALS(new Date(0)).map(([name]) => name),
]);
const SYSTEM_TOOLS = /message(\[['"]tools['"]\]|\.tools\b)/;

/**
 * The prompt's text. Throws RequestError for messages, tools or variables that the template refuses, BundleError if the
 * template fails.
 */
export function renderChat(template: TemplateParts, chat: Chat, now: Date, marker?: Marker): string {
  const reserved = [...chat.variables.keys()].find((name) => RESERVED.has(name));
  if (reserved !== undefined) {
    throw new RequestError(`chat_template_kwargs cannot set '${reserved}', which the chat template has already`, {
      param: VARIABLES,
    });
  }
  const messages = chat.messages.map((message, index) => {
    const opened = readMessage(message, index);
    const marked = marker === undefined ? opened : markMessage(opened, marker);
    return template.content === "parts" ? withParts(marked) : marked;
  });
  const tools = chat.tools?.map((tool) => (marker === undefined ? tool : markExceptType(tool, marker))) ?? null;
  const given = new Map<string, Value>([
    ...Array.from(
      chat.variables,
      ([name, value]) => [name, marker === undefined ? value : markValue(value, marker)] as const,
    ),
    ["documents", null],
    ["add_generation_prompt", chat.addGenerationPrompt],
    ["messages", messages],
    ["tools", tools],
    ...Object.entries(template.specialTokens),
  ]);
  try {
    return evaluate(template.tree, withTools(template.source, given, messages, tools), now);
  } catch (error) {
    if (error instanceof Refusal)
      throw new RequestError(`the chat template refuses these messages: ${error.message}`, {}, { cause: error });
    throw new BundleError(
      `chat template: ${messageOf(error)}; correct the checkpoint's chat template`,
      {},
      { cause: error },
    );
  }
}

/**
 * Adds the tools in the form that a template without the variable `tools` reads: SmolLM3 has the variable `xml_tools`
 * (its `python_tools` are a caller's own), and Phi-4-mini reads the functions as JSON from the system message. Callers
 * of transformers must add both themselves.
 */
function withTools(
  source: string,
  given: ReadonlyMap<string, Value>,
  messages: readonly Dict[],
  tools: readonly Value[] | null,
): ReadonlyMap<string, Value> {
  if (tools === null || tools.length === 0) return given;
  if (/\bxml_tools\b/.test(source) && !given.has("xml_tools")) return new Map([...given, ["xml_tools", tools]]);
  if (!SYSTEM_TOOLS.test(source)) return given;
  const [first] = messages;
  const [system, rest] =
    first?.get("role") === "system"
      ? [first, messages.slice(1)]
      : [
          new Dict([
            ["role", "system"],
            ["content", ""],
          ]),
          messages,
        ];
  const functions = tools.map((tool) => {
    if (!(tool instanceof Dict)) throw new TemplateError("a tool must be an object");
    return tool.get("function") ?? tool;
  });
  return new Map([...given, ["messages", [new Dict([["tools", dumps(functions, {})], ...system.pairs()]), ...rest]]]);
}

/** Templates serialize arguments and concatenate contents themselves: arguments are parsed, and a content is a text. */
function readMessage(message: Value, index: number): Dict {
  if (!(message instanceof Dict) || typeof message.get("role") !== "string")
    throw new RequestError(`messages[${index}] must be an object with a string 'role'`, { index });
  const calls = message.get("tool_calls") ?? null;
  if (!truth(calls)) return message;
  const content = message.get("content") ?? null;
  const opened = new Dict(message.pairs());
  opened.set("content", truth(content) ? content : "");
  opened.set("tool_calls", isList(calls) ? calls.map((call) => readCall(call, index)) : readCall(calls, index));
  return opened;
}

/** With the list of parts that a template reads in place of a text. */
function withParts(message: Dict): Dict {
  const text = message.get("content") ?? null;
  if (typeof text !== "string") return message;
  const part = new Dict([
    ["type", "text"],
    ["text", text],
  ]);
  const result = new Dict(message.pairs());
  result.set("content", [part]);
  return result;
}

function readCall(call: Value, index: number): Dict {
  const called = call instanceof Dict ? (call.get("function") ?? null) : null;
  let given = called instanceof Dict ? (called.get("arguments") ?? null) : null;
  try {
    if (typeof given === "string") given = loads(given === "" ? "{}" : given);
  } catch {
    given = null;
  }
  if (
    !(call instanceof Dict && called instanceof Dict && given instanceof Dict) ||
    typeof called.get("name") !== "string"
  ) {
    const form = '{type: "function", function: {name, arguments}}, with the JSON of an object for arguments';
    throw new RequestError(`messages[${index}].tool_calls must be of ${form}`, { index });
  }
  const opened = new Dict(called.pairs());
  opened.set("arguments", given);
  const result = new Dict(call.pairs());
  result.set("function", opened);
  return result;
}

function markMessage(message: Dict, marker: Marker): Dict {
  const change = (key: Value, value: Value): Value => {
    if (key === "role") return value;
    if (key === "tool_calls" && truth(value))
      return (isList(value) ? value : [value]).map((call) => markExceptType(call, marker));
    return typeof value === "string" ? marker.markInfix(value) : markValue(value, marker);
  };
  return new Dict(Array.from(message.pairs(), ([key, value]) => [key, change(key, value)]));
}

function markExceptType(value: Value, marker: Marker): Value {
  if (!(value instanceof Dict)) return markValue(value, marker);
  return new Dict(Array.from(value.pairs(), ([key, each]) => [key, key === "type" ? each : markValue(each, marker)]));
}

/** All strings of a value, keys included. */
function markValue(value: Value, marker: Marker): Value {
  if (typeof value === "string") return marker.mark(value);
  if (isList(value)) return value.map((each) => markValue(each, marker));
  if (!(value instanceof Dict)) return value;
  return new Dict(Array.from(value.pairs(), ([key, each]) => [markValue(key, marker), markValue(each, marker)]));
}
