// Converts LangChain's messages to messages of OpenAI's API.

import type { BaseMessage } from "@langchain/core/messages";
import { AIMessage, ToolMessage } from "@langchain/core/messages";

import type { ChatCompletionContentPart, ChatCompletionMessageParam } from "../api/types.js";
import { RequestError } from "../errors.js";

const ROLES: Readonly<Record<string, "system" | "user" | "assistant" | "developer">> = {
  system: "system",
  human: "user",
  ai: "assistant",
  developer: "developer",
};

/** Throws RequestError for messages and parts that have no equivalent. */
export function messageParam(message: BaseMessage): ChatCompletionMessageParam {
  const content = contentOf(message);
  if (ToolMessage.isInstance(message)) return { role: "tool", content, tool_call_id: message.tool_call_id };
  if (AIMessage.isInstance(message) && (message.tool_calls ?? []).length > 0) {
    const calls = (message.tool_calls ?? []).map(({ id = "", name, args }) => ({
      id,
      type: "function",
      function: { name, arguments: JSON.stringify(args) },
    }));
    return { role: "assistant", content: content === "" ? null : content, tool_calls: calls };
  }
  const type = message.type === "generic" && "role" in message ? String(message.role) : message.type;
  const role = ROLES[type] ?? (type === "user" || type === "assistant" ? type : undefined);
  if (role === undefined)
    throw new RequestError(`A message of type '${type}' is not supported; supported: system, human, ai, tool`, {
      param: "messages",
    });
  return { role, content };
}

/** Leaves out reasoning, as chat templates leave out earlier reasoning. */
function contentOf({ content }: BaseMessage): string | readonly ChatCompletionContentPart[] {
  if (typeof content === "string") return content;
  const parts = content.flatMap((part): ChatCompletionContentPart[] => {
    if (part.type === "text") return [{ type: "text", text: String(part.text) }];
    if (part.type === "image_url") return [part];
    if (part.type === "reasoning" || part.type === "tool_call" || part.type === "tool_use") return [];
    throw new RequestError(`A message's part of type '${part.type}' is not supported; supported: text, image_url`, {
      param: "messages",
    });
  });
  return parts.every(({ type }) => type === "text") ? parts.map(({ text = "" }) => text).join("") : parts;
}
