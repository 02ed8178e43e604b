// Tools: functions that a model may call. Reads the tools of a request, and provides the model's call format and the
// grammar of calls.

import { RequestError } from "../errors.js";
import { isText } from "../shared/grammar/schema_parts.js";
import type { GrammarSource } from "../shared/grammar/source.js";
import type { ToolFormatEntry } from "../runtime/manifest.js";

/** As in OpenAI's chat completions. */
export interface Tool {
  readonly type: "function";
  readonly function: {
    readonly name: string;
    readonly description?: string | undefined;
    /** A JSON schema of an object; without one the function has no parameters. */
    readonly parameters?: unknown;
    readonly strict?: boolean | null | undefined;
  };
}

export type ToolChoice =
  | "none"
  | "auto"
  | "required"
  | { readonly type: "function"; readonly function: { readonly name: string } };

/** A model's format of calls. The compiler finds it in the chat template, and the manifest contains it. */
export type ToolFormat = ToolFormatEntry;

const NAME = /^[A-Za-z0-9_.-]{1,64}$/;
const NO_PARAMETERS = { type: "object", properties: {}, additionalProperties: false };

/** Throws RequestError for invalid tools, or if two have the same name. */
export function checkTools(tools: readonly Tool[]): void {
  const names = new Set<string>();
  tools.forEach((tool, index) => {
    const parts = tool as { readonly type?: unknown; readonly function?: { readonly name?: unknown } };
    const name = parts.function?.name;
    if (parts.type !== "function" || typeof name !== "string" || !NAME.test(name)) {
      const form =
        "{type: \"function\", function: {name, ..}} with a name of letters, digits, '_', '-' and '.', at most 64";
      throw new RequestError(`tools[${index}] must be ${form}`, { index });
    }
    if (names.has(name))
      throw new RequestError(`tools[${index}]: there are two functions of the name '${name}'; give each its own`, {
        index,
      });
    names.add(name);
  });
}

/**
 * The grammar of an answer that consists only of calls: of any tool for "required", or of one named function. Null for
 * "none" and "auto", which do not constrain the model. With ``parallel``, several calls are allowed. Throws RequestError
 * for invalid tools or choices.
 */
export function toolGrammar(
  format: ToolFormat,
  tools: readonly Tool[],
  choice: ToolChoice,
  parallel = true,
): GrammarSource | null {
  checkTools(tools);
  if (choice === "none" || choice === "auto") return null;
  const named = choice === "required" ? null : choice.function.name;
  const chosen = tools.filter((tool) => named === null || tool.function.name === named);
  if (chosen.length === 0) {
    throw new RequestError(
      named === null
        ? "tool_choice 'required' needs tools"
        : `tool_choice names '${named}', which is none of the tools`,
    );
  }
  const { before_name: before, before_arguments: between, after_arguments: end } = format;
  const tags = chosen.map(({ function: { name, parameters } }) => ({
    begin: before + name,
    middle: between,
    schema: parameters ?? NO_PARAMETERS,
    end,
  }));
  return {
    kind: "tags",
    tags,
    separator: parallel && named === null ? format.separator : null,
    begin: format.begin,
    end: format.end,
    arguments: format.arguments,
    gap: format.gap,
  };
}

/** The parameters of a function that are strings, which some formats write without quotes. */
export function textParameters(tools: readonly Tool[], name: string): ReadonlySet<string> {
  const schema = tools.find((tool) => tool.function.name === name)?.function.parameters;
  const { properties } = Object(schema) as { readonly properties?: object };
  return new Set(Object.entries(properties ?? {}).flatMap(([key, value]) => (isText(value) ? [key] : [])));
}
