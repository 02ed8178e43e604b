// Converts a call of the AI SDK to parameters of chat.completions.create, with warnings for settings without effect.

import type { LanguageModelV4CallOptions, LanguageModelV4FunctionTool, SharedV4Warning } from "@ai-sdk/provider";

import type {
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionTool,
  ChatCompletionToolChoiceOption,
  ResponseFormat,
} from "../api/types.js";
import { messagesOf } from "./prompt.js";

export interface Call {
  readonly params: ChatCompletionCreateParamsNonStreaming;
  readonly warnings: SharedV4Warning[];
}

/** Throws RequestError for a prompt that has no equivalent. The engine itself checks the ranges of parameters. */
export function callOf(options: LanguageModelV4CallOptions): Call {
  const warnings: SharedV4Warning[] = [];
  const { reasoning, providerOptions, toolChoice } = options;
  const tools = (options.tools ?? []).flatMap((tool) => {
    if (tool.type === "function") return [functionTool(tool, warnings)];
    warnings.push({
      type: "unsupported",
      feature: `provider tool '${tool.id}'`,
      details: "only function tools run on this device",
    });
    return [];
  });
  return {
    params: {
      reasoning_effort: reasoning === "provider-default" ? undefined : reasoning,
      // The AI SDK lets provider options take precedence over `reasoning`.
      ...(providerOptions?.nearfar as Partial<ChatCompletionCreateParamsNonStreaming> | undefined),
      messages: messagesOf(options.prompt),
      // The engine ignores undefined parameters.
      max_tokens: options.maxOutputTokens,
      temperature: options.temperature,
      top_p: options.topP,
      top_k: options.topK,
      presence_penalty: options.presencePenalty,
      frequency_penalty: options.frequencyPenalty,
      stop: options.stopSequences !== undefined && options.stopSequences.length > 0 ? options.stopSequences : undefined,
      seed: options.seed,
      response_format: responseFormat(options.responseFormat),
      ...(tools.length > 0 && { tools, tool_choice: toolChoice === undefined ? undefined : choiceOf(toolChoice) }),
    },
    warnings,
  };
}

function functionTool(
  { name, description, inputSchema, inputExamples, strict }: LanguageModelV4FunctionTool,
  warnings: SharedV4Warning[],
): ChatCompletionTool {
  if (inputExamples !== undefined && inputExamples.length > 0)
    warnings.push({ type: "unsupported", feature: "inputExamples", details: `of the tool '${name}'` });
  return {
    type: "function",
    function: { name, description, parameters: inputSchema as Readonly<Record<string, unknown>>, strict },
  };
}

function choiceOf(choice: NonNullable<LanguageModelV4CallOptions["toolChoice"]>): ChatCompletionToolChoiceOption {
  return choice.type === "tool" ? { type: "function", function: { name: choice.toolName } } : choice.type;
}

function responseFormat(format: LanguageModelV4CallOptions["responseFormat"]): ResponseFormat | undefined {
  if (format === undefined || format.type === "text") return undefined;
  const { schema, name = "answer", description } = format;
  if (schema === undefined) return { type: "json_object" };
  return {
    type: "json_schema",
    json_schema: { name, description, schema: schema as Readonly<Record<string, unknown>>, strict: true },
  };
}
