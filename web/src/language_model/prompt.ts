// Converts a text or messages to messages of plain text, or throws the exception of the specification:
// https://webmachinelearning.github.io/prompt-api, "validate and canonicalize a prompt".

import type { ToolCall } from "./tools.js";

export interface LanguageModelMessageContent {
  readonly type: string;
  readonly value: unknown;
}

export interface LanguageModelMessage {
  readonly role: "system" | "user" | "assistant";
  readonly content: string | readonly LanguageModelMessageContent[];
  /** If true, this message is the start of the answer. It must be the last message, and an assistant's. */
  readonly prefix?: boolean | undefined;
}

export type LanguageModelPrompt = string | readonly LanguageModelMessage[];

/** A message of a conversation. Only the session itself adds tool calls and their results, never a prompt. */
export interface TextMessage {
  readonly role: LanguageModelMessage["role"] | "tool";
  readonly content: string;
  readonly prefix: boolean;
  readonly calls?: readonly ToolCall[];
  /** For a tool's result, the id of the call. */
  readonly callId?: string;
}

/**
 * ``isFirst``: the session is still empty, so a system message is allowed. Throws TypeError or DOMException, as the
 * specification requires.
 */
export function canonicalPrompt(input: LanguageModelPrompt, isFirst: boolean): readonly TextMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input, prefix: false }];
  if (input.length === 0) return canonicalPrompt("", isFirst);
  return input.map(({ role, content, prefix = false }, index) => {
    if (!["system", "user", "assistant"].includes(role))
      throw new TypeError(`A message's role is '${role}', it must be system, user or assistant`);
    if (role === "system" && !(isFirst && index === 0))
      throw new TypeError("A system message can only be the very first of a session");
    if (prefix && (role !== "assistant" || index < input.length - 1)) {
      throw new DOMException("Only the last message can be a prefix, and only an assistant's", "SyntaxError");
    }
    return { role, content: typeof content === "string" ? content : content.map(textOf).join(""), prefix };
  });
}

function textOf({ type, value }: LanguageModelMessageContent): string {
  if (type !== "text")
    throw new DOMException(`Content of type '${type}' is not supported; this model reads text`, "NotSupportedError");
  if (typeof value !== "string") throw new TypeError("Content of type 'text' must have a string for its value");
  return value;
}
