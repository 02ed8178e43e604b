// Converts answers of OpenAI's API to LangChain's messages, complete or in chunks.

import type { InvalidToolCall, ToolCall, UsageMetadata } from "@langchain/core/messages";
import { AIMessage, AIMessageChunk } from "@langchain/core/messages";

import type { Reasoning } from "../api/chat_source.js";
import type { ChatCompletion, ChatCompletionChunk, ChatCompletionDelta, CompletionUsage } from "../api/types.js";
import { RequestError, messageOf } from "../errors.js";

export function aiMessage(answer: ChatCompletion): AIMessage {
  const [choice] = answer.choices;
  if (choice === undefined) throw new RequestError("The answer has no choices");
  const {
    content,
    tool_calls: written = [],
    reasoning_content: reasoning,
  }: typeof choice.message & Reasoning = choice.message;
  const calls: ToolCall[] = [];
  const invalid: InvalidToolCall[] = [];
  for (const { id, function: called } of written) {
    try {
      calls.push({
        type: "tool_call",
        id,
        name: called.name,
        args: JSON.parse(called.arguments) as Record<string, unknown>,
      });
    } catch (error) {
      invalid.push({
        type: "invalid_tool_call",
        id,
        name: called.name,
        args: called.arguments,
        error: messageOf(error),
      });
    }
  }
  const message = new AIMessage({
    id: answer.id,
    content: content ?? "",
    tool_calls: calls,
    invalid_tool_calls: invalid,
    response_metadata: metadataOf(answer, choice.finish_reason),
    additional_kwargs: reasoning ? { reasoning_content: reasoning } : {},
  });
  return withUsage(message, answer.usage);
}

/** Null for a chunk that adds nothing. */
export function messageChunk(chunk: ChatCompletionChunk): AIMessageChunk | null {
  const [choice] = chunk.choices;
  if (choice === undefined) {
    if (chunk.usage === undefined || chunk.usage === null) return null;
    return withUsage(new AIMessageChunk({ id: chunk.id, content: "" }), chunk.usage);
  }
  const {
    content = "",
    tool_calls: calls = [],
    reasoning_content: reasoning,
  }: ChatCompletionDelta & Reasoning = choice.delta;
  const { finish_reason: finishReason } = choice;
  if (content === "" && calls.length === 0 && !reasoning && finishReason === null && !chunk.transcripts) return null;
  return new AIMessageChunk({
    id: chunk.id,
    content,
    tool_call_chunks: calls.map(({ index, id, function: called }) => ({
      type: "tool_call_chunk",
      index,
      ...(id !== undefined && { id }),
      ...(called?.name !== undefined && { name: called.name }),
      args: called?.arguments ?? "",
    })),
    // LangChain concatenates the metadata of all chunks, so each is in one chunk only.
    response_metadata:
      finishReason === null
        ? { ...(chunk.transcripts && { transcripts: chunk.transcripts }) }
        : metadataOf(chunk, finishReason),
    additional_kwargs: reasoning ? { reasoning_content: reasoning } : {},
  });
}

function metadataOf(
  { model, timings, route, transcripts }: Pick<ChatCompletionChunk, "model" | "timings" | "route" | "transcripts">,
  finishReason: string,
): Record<string, unknown> {
  return {
    model_provider: "nearfar",
    model_name: model,
    finish_reason: finishReason,
    ...(timings && { timings }),
    ...(route && { route }),
    ...(transcripts && { transcripts }),
  };
}

/** The usage is assigned afterwards, because the constructors' types reject it for messages without declared tools. */
function withUsage<M extends AIMessage | AIMessageChunk>(
  message: M,
  { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details: details }: CompletionUsage,
): M {
  const usage: UsageMetadata = {
    input_tokens: prompt_tokens,
    output_tokens: completion_tokens,
    total_tokens,
    ...(details && { input_token_details: { cache_read: details.cached_tokens } }),
  };
  Object.assign(message, { usage_metadata: usage });
  return message;
}
