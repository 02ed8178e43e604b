// The messages of a context, and the same with a question.

import { isObject, shown } from "../api/params.js";
import type { ChatCompletionContentPart, ChatCompletionMessageParam } from "../api/types.js";
import { RequestError } from "../errors.js";
import { requireUnicode } from "../shared/unicode.js";

/** The messages of a context. Throws RequestError. */
export function messagesOf(
  context: string | readonly ChatCompletionMessageParam[],
): readonly ChatCompletionMessageParam[] {
  if (typeof context === "string") {
    requireUnicode(context, "context");
    return context === "" ? [] : [{ role: "user", content: context }];
  }
  const given: readonly unknown[] | null = Array.isArray(context) ? context : null;
  if (given?.every(isObject) !== true)
    throw new RequestError(`context is ${shown(context)}, it must be a text or a list of messages`, {
      param: "context",
    });
  return context;
}

/**
 * The messages with a question at their end: in the user's last message, after an empty line, or in one of its own. The
 * server has the same.
 */
export function asking(
  messages: readonly ChatCompletionMessageParam[],
  text: string,
): readonly ChatCompletionMessageParam[] {
  const last = messages.at(-1);
  if (last?.role !== "user") return [...messages, { role: "user", content: text }];
  const added: ChatCompletionContentPart = { type: "text", text: `\n\n${text}` };
  const { content } = last;
  const parts = typeof content === "string" ? [{ type: "text" as const, text: content }] : (content ?? []);
  return [...messages.slice(0, -1), { ...last, content: [...parts, added] }];
}
