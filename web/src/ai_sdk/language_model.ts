// The AI SDK's language model, implemented with chat.completions.create.

import type {
  JSONObject,
  LanguageModelV4,
  LanguageModelV4Content,
  LanguageModelV4FinishReason,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
  SharedV4ProviderMetadata,
  SharedV4Warning,
} from "@ai-sdk/provider";

import type { ChatSource, Reasoning } from "../api/chat_source.js";
import { appendOnly } from "../api/chat_source.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionDelta,
  ChatFinishReason,
  CompletionUsage,
} from "../api/types.js";
import { RequestError } from "../errors.js";
import { callOf } from "./call.js";

export function languageModel(source: ChatSource, modelId: string): LanguageModelV4 {
  const { completions } = source.chat;
  return {
    specificationVersion: "v4",
    provider: "nearfar",
    modelId,
    supportedUrls: {},
    async doGenerate(options) {
      const { params, warnings } = callOf(options);
      const answer = await completions.create(params, { signal: options.abortSignal });
      const [choice] = answer.choices;
      if (choice === undefined) throw new RequestError("The answer has no choices");
      return {
        content: contentOf(choice.message),
        finishReason: finishReason(choice.finish_reason),
        usage: usageOf(answer.usage),
        warnings,
        response: { id: answer.id, modelId: answer.model, timestamp: new Date(answer.created * 1000) },
        ...metadataOf(answer),
      };
    },
    async doStream(options) {
      const { params, warnings } = callOf(options);
      const cancelled = new AbortController();
      const signal = AbortSignal.any([
        cancelled.signal,
        ...(options.abortSignal === undefined ? [] : [options.abortSignal]),
      ]);
      const chunks = await completions.create(
        { ...params, stream: true, stream_options: { include_usage: true } },
        { signal },
      );
      const parts = streamParts(appendOnly(chunks), warnings, options.includeRawChunks === true);
      return {
        stream: new ReadableStream<LanguageModelV4StreamPart>({
          async pull(controller) {
            const { done, value } = await parts.next();
            if (done === true) controller.close();
            else controller.enqueue(value);
          },
          async cancel(reason) {
            cancelled.abort(reason);
            await parts.return();
          },
        }),
      };
    },
  };
}

function contentOf({
  content,
  tool_calls = [],
  reasoning_content: reasoning,
}: ChatCompletion["choices"][number]["message"] & Reasoning): LanguageModelV4Content[] {
  return [
    ...(reasoning ? [{ type: "reasoning" as const, text: reasoning }] : []),
    ...(content ? [{ type: "text" as const, text: content }] : []),
    ...tool_calls.map((call) => ({
      type: "tool-call" as const,
      toolCallId: call.id,
      toolName: call.function.name,
      input: call.function.arguments,
    })),
  ];
}

/** Only one block of text or reasoning is open at a time. A tool call ends at the next one, or with the answer. */
async function* streamParts(
  chunks: AsyncIterable<ChatCompletionChunk>,
  warnings: SharedV4Warning[],
  includesRaw: boolean,
): AsyncGenerator<LanguageModelV4StreamPart, void, undefined> {
  yield { type: "stream-start", warnings };
  let open: "text" | "reasoning" | null = null;
  let blocks = 0;
  const calls: { readonly id: string; readonly name: string; input: string }[] = [];
  let usage: CompletionUsage | undefined;
  let reason: ChatFinishReason | undefined;
  let extra: Extra = {};
  let isFirst = true;

  function* show(kind: "text" | "reasoning", delta: string): Generator<LanguageModelV4StreamPart> {
    if (delta === "") return;
    if (open !== kind) {
      yield* close();
      open = kind;
      blocks++;
      yield { type: `${kind}-start`, id: `${kind}-${blocks}` };
    }
    yield { type: `${kind}-delta`, id: `${kind}-${blocks}`, delta };
  }
  function* close(): Generator<LanguageModelV4StreamPart> {
    if (open !== null) yield { type: `${open}-end`, id: `${open}-${blocks}` };
    open = null;
  }
  function* callEnd(): Generator<LanguageModelV4StreamPart> {
    const call = calls.at(-1);
    if (call === undefined) return;
    yield { type: "tool-input-end", id: call.id };
    yield { type: "tool-call", toolCallId: call.id, toolName: call.name, input: call.input };
  }
  function* callDeltas(deltas: ChatCompletionDelta["tool_calls"] = []): Generator<LanguageModelV4StreamPart> {
    for (const { index, id, function: described } of deltas) {
      if (index >= calls.length) {
        yield* close();
        yield* callEnd();
        const call = { id: id ?? `call-${index}`, name: described?.name ?? "", input: "" };
        calls.push(call);
        yield { type: "tool-input-start", id: call.id, toolName: call.name };
      }
      const call = calls[index];
      const delta = described?.arguments ?? "";
      if (call === undefined || delta === "") continue;
      call.input += delta;
      yield { type: "tool-input-delta", id: call.id, delta };
    }
  }

  for await (const chunk of chunks) {
    if (includesRaw) yield { type: "raw", rawValue: chunk };
    if (isFirst)
      yield {
        type: "response-metadata",
        id: chunk.id,
        modelId: chunk.model,
        timestamp: new Date(chunk.created * 1000),
      };
    isFirst = false;
    usage = chunk.usage ?? usage;
    const { route = extra.route, timings = extra.timings, transcripts = extra.transcripts } = chunk;
    extra = { route, timings, transcripts };
    const [choice] = chunk.choices;
    if (choice === undefined) continue;
    const delta: ChatCompletionDelta & Reasoning = choice.delta;
    yield* show("reasoning", delta.reasoning_content ?? "");
    yield* show("text", delta.content ?? "");
    yield* callDeltas(delta.tool_calls);
    reason = choice.finish_reason ?? reason;
  }
  yield* close();
  yield* callEnd();
  yield { type: "finish", usage: usageOf(usage), finishReason: finishReason(reason), ...metadataOf(extra) };
}

function finishReason(reason: ChatFinishReason | undefined): LanguageModelV4FinishReason {
  switch (reason) {
    case "stop":
    case "length":
      return { unified: reason, raw: reason };
    case "tool_calls":
    case "function_call":
      return { unified: "tool-calls", raw: reason };
    case "content_filter":
      return { unified: "content-filter", raw: reason };
    case undefined:
      return { unified: "other", raw: undefined };
  }
}

function usageOf(usage: CompletionUsage | undefined): LanguageModelV4Usage {
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  return {
    inputTokens: {
      total: usage?.prompt_tokens,
      noCache: usage === undefined || cached === undefined ? undefined : usage.prompt_tokens - cached,
      cacheRead: cached,
      cacheWrite: undefined,
    },
    outputTokens: { total: usage?.completion_tokens, text: undefined, reasoning: undefined },
    ...(usage && { raw: usage as unknown as JSONObject }),
  };
}

/** What is ours of an answer or a chunk. */
type Extra = { readonly [Name in "route" | "timings" | "transcripts"]?: ChatCompletionChunk[Name] | undefined };

function metadataOf({ route, timings, transcripts }: Extra): { providerMetadata: SharedV4ProviderMetadata } {
  return {
    providerMetadata: {
      nearfar: {
        ...(route && { route: route as unknown as JSONObject }),
        ...(timings && { timings: timings as unknown as JSONObject }),
        ...(transcripts && { transcripts: transcripts as unknown as JSONObject[] }),
      },
    },
  };
}
