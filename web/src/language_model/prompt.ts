// What the Prompt API takes for a prompt, in one form. A text or messages flow in, messages of plain text flow out, or the exception that the
// specification asks for: https://webmachinelearning.github.io/prompt-api, "validate and canonicalize a prompt".

import type { ToolCall } from "./tools.js";

export interface LanguageModelMessageContent {
  readonly type: string;
  readonly value: unknown;
}

export interface LanguageModelMessage {
  readonly role: "system" | "user" | "assistant";
  readonly content: string | readonly LanguageModelMessageContent[];
  /** The last message, an assistant's, is the start of the answer. */
  readonly prefix?: boolean | undefined;
}

export type LanguageModelPrompt = string | readonly LanguageModelMessage[];

/** A message of a conversation. Calls of tools and their results come from the session itself, never from a prompt. */
export interface TextMessage {
  readonly role: LanguageModelMessage["role"] | "tool";
  readonly content: string;
  readonly prefix: boolean;
  readonly calls?: readonly ToolCall[];
  /** Of a tool's result: the call that it answers. */
  readonly callId?: string;
}

/** ``isFirst``: nothing is in the session yet, so that a system message may come. Throws TypeError, or DOMException as the specification says. */
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
