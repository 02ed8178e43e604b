// The older form of tools in OpenAI's API: `functions` and `function_call` for `tools` and `tool_choice`,
// `function_call` for the call of a message, and the role "function" for a result. Requests become those of tools, and
// the chunks of their answers get the older form again, so that nothing between knows it. See
// server_fallback/schema/functions.py. Source: OpenAI's API reference, "Create chat completion", the deprecated
// parameters.

import { RequestError } from "../errors.js";
import type { Given } from "./params.js";
import { isObject, shown } from "./params.js";
import type {
  ChatCompletionChunk,
  ChatCompletionChunkChoice,
  ChatCompletionCreateParamsBase,
  ChatCompletionFunction,
  ChatCompletionMessageParam,
} from "./types.js";

type ChatParams = Omit<Given<ChatCompletionCreateParamsBase>, "messages">;

export interface Tooled<T> {
  /** The parameters with tools only. */
  readonly params: Omit<T, "functions" | "function_call">;
  /** A chunk of the answer in the form that was requested. */
  readonly answered: (chunk: ChatCompletionChunk) => ChatCompletionChunk;
}

/** Throws RequestError for parameters of both forms, malformed functions, and a choice of an unknown function. */
export function asTools<T extends ChatParams>(given: T): Tooled<T> {
  const { functions, function_call: choice, ...params } = given;
  if (functions === undefined && choice === undefined) return { params, answered: (chunk) => chunk };
  const older = functions === undefined ? "function_call" : "functions";
  const newer = (["tools", "tool_choice", "parallel_tool_calls"] as const).find((name) => isGiven(given[name]));
  if (newer !== undefined)
    throw refused(older, `is the older form of tools, and ${newer} belongs to the newer one; use one of the two forms`);
  const tools = (functions ?? []).map((described, index) => ({
    type: "function",
    function: readFunction(described, index),
  }));
  const names = tools.map(({ function: { name } }) => name);
  const named = typeof choice === "object" ? choice.name : null;
  if (named !== null && !names.includes(named)) {
    throw refused(
      "function_call",
      `names the function ${shown(named)}, but functions has ${names.join(", ") || "none"}; name one of functions`,
    );
  }
  const chosen = named === null ? choice : { type: "function", function: { name: named } };
  return {
    params: { ...params, tools, ...(chosen && { tool_choice: chosen }), parallel_tool_calls: false },
    answered: functions === undefined ? (chunk) => chunk : functionCalls,
  };
}

/**
 * The messages with calls and results of functions as those of tools. A result belongs to the last call of its name.
 * Throws RequestError for malformed calls, and for a message with calls of both forms.
 */
export function asToolMessages(messages: readonly ChatCompletionMessageParam[]): readonly ChatCompletionMessageParam[] {
  const ids = new Map<string | undefined, string>();
  return messages.map((message, index) => {
    // Some chat templates require ids of nine letters and digits.
    const id = `call${String(index).padStart(5, "0")}`;
    const { function_call: call, ...rest } = Object(message) as ChatCompletionMessageParam;
    if (!isGiven(call))
      return rest.role === "function" ? { ...rest, role: "tool", tool_call_id: ids.get(rest.name) ?? id } : message;
    const where = `messages[${index}].function_call`;
    if (isGiven(rest.tool_calls)) throw refused(where, "and tool_calls mean the same; use one of them");
    if (typeof call?.name !== "string" || typeof call.arguments !== "string")
      throw refused(where, `is ${shown(call)}, it must be { name, arguments }, both strings`);
    ids.set(call.name, id);
    return { ...rest, tool_calls: [{ id, type: "function", function: call }] };
  });
}

/** The chunk with the first call of each choice in the older form, and without any other call. */
function functionCalls(chunk: ChatCompletionChunk): ChatCompletionChunk {
  return { ...chunk, choices: chunk.choices.map(functionChoice) };
}

function functionChoice({ delta, finish_reason: reason, ...choice }: ChatCompletionChunkChoice) {
  const { tool_calls: calls, ...others } = delta;
  const called = calls?.find(({ index }) => index === 0)?.function;
  return {
    ...choice,
    delta: called === undefined ? others : { ...others, function_call: called },
    finish_reason: reason === "tool_calls" ? ("function_call" as const) : reason,
  };
}

function readFunction(described: ChatCompletionFunction, index: number): ChatCompletionFunction {
  const known = ["name", "description", "parameters"];
  if (
    !isObject(described) ||
    typeof described.name !== "string" ||
    !Object.keys(described).every((key) => known.includes(key))
  )
    throw refused(`functions[${index}]`, `is ${shown(described)}, it must be { ${known.join(", ")} }`);
  return described;
}

/** Clients send back empty lists and objects of null. */
function isGiven(value: unknown): boolean {
  return Boolean(value) && (typeof value !== "object" || Object.values(Object(value) as object).some(isGiven));
}

function refused(param: string, problem: string): RequestError {
  return new RequestError(`${param} ${problem}`, { param });
}
