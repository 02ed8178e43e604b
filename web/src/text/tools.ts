// Tools: functions that a model may call. Reads the tools of a request, and provides the model's call format and the
// grammar of calls.

import { RequestError } from "../errors.js";
import type { GrammarSource } from "../grammar/source.js";

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
  "none" | "auto" | "required" | { readonly type: "function"; readonly function: { readonly name: string } };

/**
 * The format of calls. "hermes" (Qwen 2.5 and 3, Hermes): `<tool_call>{"name": .., "arguments": ..}</tool_call>`.
 * "llama3" (Llama 3.1 and on): `{"name": .., "parameters": ..}` as the complete answer.
 */
export type ToolFormat = "hermes" | "llama3";

const NAME = /^[A-Za-z0-9_.-]{1,64}$/;
const NO_PARAMETERS = { type: "object", properties: {}, additionalProperties: false };

/** The call format of a chat template; null if it has no tools or uses another format. */
export function toolFormat(chatTemplate: string): ToolFormat | null {
  if (!/\btools\b/.test(chatTemplate)) return null;
  if (chatTemplate.includes("<tool_call>"))
    return chatTemplate.includes("<function=") || chatTemplate.includes("<arg_key>") ? null : "hermes";
  return chatTemplate.includes("<|python_tag|>") || /"parameters\\?"/.test(chatTemplate) ? "llama3" : null;
}

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
  const [begin, key, end] =
    format === "hermes" ? ["<tool_call>\n", "arguments", "\n</tool_call>"] : ["", "parameters", ""];
  const tags = chosen.map(({ function: { name, parameters } }) => ({
    begin: `${begin}{"name": ${JSON.stringify(name)}, "${key}": `,
    schema: parameters ?? NO_PARAMETERS,
    end: `}${end}`,
  }));
  return { kind: "tags", tags, separator: parallel && named === null && format === "hermes" ? "\n" : null };
}
