// The tools of a session: functions of the page that the model may call while it answers.

import type { FunctionTool } from "../api/types.js";
import { messageOf } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";

export interface LanguageModelTool {
  readonly name: string;
  readonly description: string;
  /** A JSON schema with type "object". */
  readonly inputSchema: object;
  /** Receives the arguments as one object. A result that is not a string is sent to the model as JSON. */
  readonly execute: (input: never) => unknown;
}

/** A call as the model wrote it; ``arguments`` is JSON text. */
export interface ToolCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: string;
}

/** Throws TypeError for tools that the specification rejects. It requires all four members, `execute` included. */
export function checkTools(tools: readonly LanguageModelTool[]): void {
  const names = new Set<string>();
  for (const { name, description, inputSchema, execute } of tools as readonly Partial<LanguageModelTool>[]) {
    if (typeof name !== "string" || name === "" || typeof description !== "string" || typeof inputSchema !== "object") {
      throw new TypeError("A tool must have a name, a description and an inputSchema");
    }
    if (names.has(name)) throw new TypeError(`Two tools have the name '${name}'; names must be unique`);
    names.add(name);
    if (typeof execute !== "function")
      throw new TypeError(`The tool '${name}' needs \`execute\`, the function that runs when the model calls the tool`);
  }
}

/** The tools in the form of a chat completion. */
export function functionTools(tools: readonly LanguageModelTool[]): readonly FunctionTool[] {
  return tools.map(({ name, description, inputSchema }) => ({
    type: "function",
    function: { name, description, parameters: inputSchema as Readonly<Record<string, unknown>> },
  }));
}

/** The tool's result as text for the model. An error becomes a result too. Throws the signal's reason. */
export async function runTool(
  tools: readonly LanguageModelTool[],
  call: ToolCall,
  signal: AbortSignal,
): Promise<string> {
  try {
    const tool = tools.find(({ name }) => name === call.name);
    if (tool === undefined)
      throw new Error(`Unknown tool '${call.name}'; the tools are ${tools.map(({ name }) => name).join(", ")}`);
    const execute = tool.execute as (input: unknown) => unknown;
    const input: unknown = JSON.parse(call.arguments === "" ? "{}" : call.arguments);
    const result = await unlessAborted(Promise.resolve(execute(input)), signal);
    return typeof result === "string" ? result : JSON.stringify(result ?? null);
  } catch (error) {
    signal.throwIfAborted();
    return JSON.stringify({ error: messageOf(error) });
  }
}
