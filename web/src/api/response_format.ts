// Turns response_format and tools into the grammar of an answer and the format of its tool calls.

import type { Constraint, TokenRequest } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { ReasoningStart } from "../grammar/reasoning_constraint.js";
import type { GrammarSource } from "../shared/grammar/source.js";
import type { Model, ToolFormat } from "./model.js";
import type { Given } from "./params.js";
import { shown } from "./params.js";
import type { ChatCompletionCreateParamsBase, ChatCompletionTool, FunctionTool, ResponseFormat } from "./types.js";

export interface AnswerFormat {
  readonly grammar: GrammarSource | undefined;
  /** The tools in the prompt, and the format of their calls. */
  readonly calls: { readonly tools: readonly FunctionTool[]; readonly format: ToolFormat } | null;
}

/** Throws RequestError for malformed parameters, and for features that this engine lacks. */
export function answerFormat(model: Model, params: Given<ChatCompletionCreateParamsBase>): AnswerFormat {
  const { response_format: responseFormat = { type: "text" }, tool_choice: choice = "auto" } = params;
  const tools = (params.tools ?? []).map(functionTool);
  const named = typeof choice === "object" ? choice.function?.name : undefined;
  if (typeof choice === "object" && !tools.some((tool) => tool.function.name === named)) {
    throw refused("tool_choice", `is ${shown(choice)}, which names none of the tools`);
  }
  if (choice === "required" && tools.length === 0)
    throw refused("tool_choice", 'is "required", but there are no tools');
  const calls =
    tools.length === 0 || choice === "none"
      ? null
      : { tools, format: required(model.tools, "tools", "a chat template that knows tools") };
  const forced = calls !== null && choice !== "none" && choice !== "auto" ? calls.format.grammar(tools, choice) : null;
  const requested = grammarSpec(responseFormat);
  if (requested !== null && calls !== null) throw refused("response_format", "and tools cannot be used together");
  const grammar = requested ?? forced ?? undefined;
  if (grammar !== undefined)
    required(model.grammar, requested === null ? "tool_choice" : "response_format", "an engine with grammars");
  return { grammar, calls };
}

export type Constrain = (request: TokenRequest) => Promise<Constraint | undefined>;

/** Makes a request's own constraint: each answer needs one. ``starts``: the reasoning before the constrained part. */
export function constrainer(model: Model, grammar: GrammarSource | undefined, starts?: ReasoningStart): Constrain {
  return async ({ promptIds, maxTokens }) => {
    const room = Math.max(1, model.context - promptIds.length + 1);
    const most = Math.min(maxTokens ?? room, room);
    return (grammar ?? starts?.budget) === undefined ? undefined : model.grammar?.constraint(grammar, most, starts);
  };
}

/** The requests with their constraints. If one fails, the others are freed. */
export async function constrained(
  planned: readonly TokenRequest[],
  constrain: Constrain,
): Promise<readonly TokenRequest[]> {
  const requests: TokenRequest[] = [];
  try {
    for (const request of planned) requests.push({ ...request, constraint: await constrain(request) });
  } catch (error) {
    for (const { constraint } of requests) constraint?.dispose();
    throw error;
  }
  return requests;
}

function grammarSpec(format: ResponseFormat): GrammarSource | null {
  switch (format.type) {
    case "text":
      return null;
    case "json_object":
      if ("schema" in format) throw refused("response_format", "with a schema needs type json_schema");
      return { kind: "json_object" };
    case "json_schema": {
      const schema: unknown = (format.json_schema as Partial<typeof format.json_schema> | undefined)?.schema;
      if (typeof schema !== "object" || schema === null)
        throw refused("response_format", "of type json_schema needs json_schema.schema, an object");
      return { kind: "json_schema", schema };
    }
    case "regex":
      if (typeof format.pattern !== "string") throw refused("response_format", "of type regex needs pattern, a string");
      return { kind: "regex", pattern: format.pattern };
    case "grammar":
      if (typeof format.grammar !== "string")
        throw refused("response_format", "of type grammar needs grammar, a string");
      return { kind: "ebnf", grammar: format.grammar };
    default:
      throw refused(
        "response_format",
        `has type ${shown((format satisfies never as ResponseFormat).type)}, ` +
          "it must be text, json_object, json_schema, regex or grammar",
      );
  }
}

function functionTool(tool: ChatCompletionTool, index: number): FunctionTool {
  const { type, function: described } = tool;
  if (type !== "function" || typeof described?.name !== "string") {
    throw refused(
      `tools[${index}]`,
      `is ${shown(tool)}, it must be { type: "function", function: { name, description, parameters } }`,
    );
  }
  return { type, function: described };
}

function required<T>(value: T | undefined, param: string, needs: string): T {
  if (value === undefined) throw refused(param, `needs ${needs}, which this model lacks`);
  return value;
}

function refused(param: string, problem: string): RequestError {
  return new RequestError(`${param} ${problem}`, { param });
}
