// The text of a message, for decisions, for private patterns, and for answers that continue it.

import type { ChatCompletionMessageParam } from "../../api/types.js";

/** The complete text of a message, with its parts joined as our engines join them. */
export function textOf(message: ChatCompletionMessageParam): string {
  return typeof message.content === "string" ? message.content : partsOf(message).join("");
}

/**
 * The texts of a message in the order of the prompt, if there are several: its reasoning, then its content's parts.
 */
export function meetingTexts(message: ChatCompletionMessageParam): readonly string[] {
  const {
    content,
    reasoning_content: long,
    reasoning: short,
  } = message as typeof message & {
    readonly reasoning?: unknown;
  };
  const thoughts = [long, short].filter((text) => typeof text === "string");
  const texts = typeof content === "string" ? [content] : partsOf(message);
  return thoughts.length > 0 || typeof content !== "string" ? [...thoughts, ...texts] : [];
}

/** The texts of a message's parts, "" for parts that are not text. */
function partsOf({ content }: ChatCompletionMessageParam): readonly string[] {
  return Array.isArray(content)
    ? content.map((part: { readonly text?: unknown } | null) => (typeof part?.text === "string" ? part.text : ""))
    : [];
}
