// The text of a message, for decisions, for private patterns, and for answers that continue it.

import type { ChatCompletionMessageParam } from "../../api/types.js";

/** The complete text of a message, with its parts joined as our engines join them. */
export function textOf(message: ChatCompletionMessageParam): string {
  return typeof message.content === "string" ? message.content : partsOf(message).join("");
}

/** The texts of a message's parts, "" for parts that are not text. */
function partsOf({ content }: ChatCompletionMessageParam): readonly string[] {
  return Array.isArray(content)
    ? content.map((part: { readonly text?: unknown } | null) => (typeof part?.text === "string" ? part.text : ""))
    : [];
}
