// Converts a text or messages to messages of text and pictures, or throws the exception of the specification:
// https://webmachinelearning.github.io/prompt-api, "validate and canonicalize a prompt".

import type { ChatCompletionContentPart } from "../api/types.js";
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
  /** A list of parts if there are pictures, which only the user's messages have. */
  readonly content: string | readonly ChatCompletionContentPart[];
  readonly prefix: boolean;
  readonly calls?: readonly ToolCall[];
  /** For a tool's result, the id of the call. */
  readonly callId?: string;
}

/**
 * ``isFirst``: the session is still empty, so a system message is allowed. ``sees``: it expects images. Throws TypeError
 * or DOMException, as the specification requires.
 */
export function canonicalPrompt(input: LanguageModelPrompt, isFirst: boolean, sees: boolean): readonly TextMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input, prefix: false }];
  if (input.length === 0) return canonicalPrompt("", isFirst, sees);
  return input.map(({ role, content, prefix = false }, index) => {
    if (!["system", "user", "assistant"].includes(role))
      throw new TypeError(`A message's role is '${role}', it must be system, user or assistant`);
    if (role === "system" && !(isFirst && index === 0))
      throw new TypeError("A system message can only be the very first of a session");
    if (prefix && (role !== "assistant" || index < input.length - 1)) {
      throw new DOMException("Only the last message can be a prefix, and only an assistant's", "SyntaxError");
    }
    if (typeof content === "string") return { role, content, prefix };
    const parts = content.map((part) => partOf(part, sees && role === "user"));
    const isText = parts.every(({ type }) => type === "text");
    return { role, content: isText ? parts.map(({ text = "" }) => text).join("") : parts, prefix };
  });
}

function partOf({ type, value }: LanguageModelMessageContent, sees: boolean): ChatCompletionContentPart {
  if (type === "image" && sees) return { type, image: pictureOf(value) };
  if (type !== "text")
    throw new DOMException(
      `Content of type '${type}' is not supported; the session reads text${sees ? " and images" : ", and images of the user if it expects them"}`,
      "NotSupportedError",
    );
  if (typeof value !== "string") throw new TypeError("Content of type 'text' must have a string for its value");
  return { type, text: value };
}

/** An ImageBitmapSource, or the bytes of a file. */
function pictureOf(value: unknown): NonNullable<ChatCompletionContentPart["image"]> {
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) return new Blob([value as BufferSource]);
  if (typeof value !== "object" || value === null)
    throw new TypeError("Content of type 'image' must have an ImageBitmapSource or a buffer for its value");
  return value as Blob;
}
