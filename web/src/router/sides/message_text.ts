// The text of a message: what a decision reads, what is searched for what is private, and what an answer continues.

import type { ChatCompletionMessageParam } from "../../api/types.js";

/** All of a message's text, as our engines join its parts. */
export function textOf(message: ChatCompletionMessageParam): string {
  return typeof message.content === "string" ? message.content : partsOf(message).join("");
}

/** The texts of a message of several parts, "" for those that are not text. */
export function partsOf({ content }: ChatCompletionMessageParam): readonly string[] {
  return Array.isArray(content)
    ? content.map((part: { readonly text?: unknown } | null) => (typeof part?.text === "string" ? part.text : ""))
    : [];
}
