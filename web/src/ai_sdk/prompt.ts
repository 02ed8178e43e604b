// Converts a prompt of the AI SDK to messages of OpenAI's API.

import type { LanguageModelV4Message, LanguageModelV4Prompt, LanguageModelV4ToolResultPart } from "@ai-sdk/provider";

import { base64Of, filePart, isAudio, seenPart, soundPart, textFilePart } from "../api/attached_parts.js";
import type { ChatCompletionContentPart, ChatCompletionMessageParam } from "../api/types.js";
import { RequestError } from "../errors.js";

type UserPart = Extract<LanguageModelV4Message, { role: "user" }>["content"][number];
type FilePart = Extract<UserPart, { type: "file" }>;

/** Throws RequestError for parts that have no equivalent. */
export function messagesOf(prompt: LanguageModelV4Prompt): ChatCompletionMessageParam[] {
  return prompt.flatMap((message): ChatCompletionMessageParam[] => {
    switch (message.role) {
      case "system":
        return [{ role: "system", content: message.content }];
      case "user":
        return [{ role: "user", content: userContent(message.content) }];
      case "assistant":
        return [assistantMessage(message.content)];
      case "tool":
        return message.content.map((part) => {
          if (part.type !== "tool-result") throw unsupported(`a tool message's part of type '${part.type}'`);
          return { role: "tool", tool_call_id: part.toolCallId, content: resultText(part.output) };
        });
    }
  });
}

function userContent(parts: readonly UserPart[]): string | ChatCompletionContentPart[] {
  const converted = parts.map((part) => (part.type === "text" ? { type: "text", text: part.text } : partOfFile(part)));
  return converted.every((part) => "text" in part) ? converted.map(({ text }) => text).join("") : converted;
}

/** An engine rejects what its model does not read. */
function partOfFile({ data, mediaType, filename }: FilePart): ChatCompletionContentPart {
  if (data.type === "text") return textFilePart(data.text, mediaType, filename);
  if (data.type === "reference") throw unsupported("a reference to a file of a provider");
  const [kind] = mediaType.toLowerCase().split("/");
  const isSeen = kind === "image" || kind === "video";
  if (data.type === "url") {
    // The SDK downloads addresses that a model does not read itself.
    if (!isSeen) throw unsupported(`the address of a file of type '${mediaType}'`);
    return seenPart(kind, data.url.href);
  }
  if (isAudio(mediaType)) return soundPart({ mediaType, data: data.data });
  if (!isSeen) return filePart({ mediaType, data: data.data, filename });
  const isWhole = mediaType.includes("/") && !mediaType.endsWith("/*");
  const type = isWhole ? mediaType : kind === "image" ? "image/png" : "video/mp4";
  return seenPart(kind, `data:${type};base64,${base64Of(data.data)}`);
}

function assistantMessage(
  parts: Extract<LanguageModelV4Message, { role: "assistant" }>["content"],
): ChatCompletionMessageParam {
  let text = "";
  const calls: NonNullable<ChatCompletionMessageParam["tool_calls"]>[number][] = [];
  for (const part of parts) {
    if (part.type === "text") text += part.text;
    else if (part.type === "tool-call")
      calls.push({
        id: part.toolCallId,
        type: "function",
        function: { name: part.toolName, arguments: JSON.stringify(part.input) },
      });
    // Reasoning is left out, as chat templates leave out earlier reasoning.
    else if (part.type !== "reasoning") throw unsupported(`an assistant message's part of type '${part.type}'`);
  }
  return calls.length === 0
    ? { role: "assistant", content: text }
    : { role: "assistant", content: text === "" ? null : text, tool_calls: calls };
}

function resultText(output: LanguageModelV4ToolResultPart["output"]): string {
  switch (output.type) {
    case "text":
    case "error-text":
      return output.value;
    case "json":
    case "error-json":
      return JSON.stringify(output.value);
    case "execution-denied":
      return output.reason ?? "The user denied the execution of this tool.";
    case "content":
      return output.value
        .map((part) => {
          if (part.type !== "text") throw unsupported(`a tool result's part of type '${part.type}'`);
          return part.text;
        })
        .join("");
  }
}

function unsupported(what: string): RequestError {
  return new RequestError(`${what} is not supported; remove it from the prompt`, { param: "prompt" });
}
