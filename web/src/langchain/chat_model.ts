// LangChain's chat model, implemented with chat.completions.create.

import type { CallbackManagerForLLMRun } from "@langchain/core/callbacks/manager";
import type { BaseLanguageModelInput, StructuredOutputMethodOptions } from "@langchain/core/language_models/base";
import type {
  BaseChatModelCallOptions,
  BaseChatModelParams,
  BindToolsInput,
} from "@langchain/core/language_models/chat_models";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import {
  assembleStructuredOutputPipeline,
  createContentParser,
} from "@langchain/core/language_models/structured_output";
import type { AIMessageChunk, BaseMessage } from "@langchain/core/messages";
import { AIMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { ChatGenerationChunk } from "@langchain/core/outputs";
import type { Runnable } from "@langchain/core/runnables";
import { convertToOpenAITool } from "@langchain/core/utils/function_calling";
import { toJsonSchema } from "@langchain/core/utils/json_schema";

import type { ChatSource } from "../api/chat_source.js";
import { appendOnly, modelName } from "../api/chat_source.js";
import type { Attached } from "../api/attached_parts.js";
import { base64Of, filePart, seenPart, soundPart, textFilePart } from "../api/attached_parts.js";
import type { EngineApi } from "../api/engine_api.js";
import type {
  ChatCompletionContentPart,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionMessageParam,
  ChatCompletionToolChoiceOption,
  ResponseFormat,
} from "../api/types.js";
import { RequestError } from "../errors.js";
import { aiMessage, messageChunk } from "./answers.js";

/** Parameters of every call, with OpenAI's names and the engine's extensions. */
type Params = Omit<
  ChatCompletionCreateParamsNonStreaming,
  "messages" | "stream" | "stream_options" | "n" | "stop" | "signal" | "tools" | "tool_choice"
>;

export interface ChatNearfarFields extends BaseChatModelParams {
  /** An Engine, an engine in a worker, or a Hybrid. */
  readonly engine: ChatSource;
  readonly params?: Params & { readonly stop?: readonly string[] };
}

export interface ChatNearfarCallOptions extends BaseChatModelCallOptions {
  /** Override the fields' params for one call. For a Hybrid also `pin`, `labels` and `language`. */
  readonly params?: Params & Readonly<Record<string, unknown>>;
  readonly tools?: readonly BindToolsInput[];
  readonly response_format?: ResponseFormat;
}

type Input = BaseLanguageModelInput;
type Schema<Output extends Record<string, unknown>> = Parameters<typeof createContentParser<Output>>[0];
interface Raw<Output> {
  raw: BaseMessage;
  parsed: Output;
}

/**
 * A chat model that uses an engine on this device or a Hybrid, with `invoke`, `stream`, `bindTools` and
 * `withStructuredOutput`. Calls throw RequestError, DeviceError, Unavailable, or the signal's reason. Calls are not
 * repeated after an error.
 */
export class ChatNearfar extends BaseChatModel<ChatNearfarCallOptions> {
  readonly #source: ChatSource;
  readonly #params: NonNullable<ChatNearfarFields["params"]>;

  static override lc_name(): string {
    return "ChatNearfar";
  }

  constructor({ engine, params = {}, ...fields }: ChatNearfarFields) {
    super(fields);
    this.#source = engine;
    this.#params = params;
  }

  get model(): string {
    return modelName(this.#source);
  }

  override _llmType(): string {
    return "nearfar";
  }

  override bindTools(
    tools: BindToolsInput[],
    kwargs?: Partial<ChatNearfarCallOptions>,
  ): Runnable<Input, AIMessageChunk, ChatNearfarCallOptions> {
    return this.withConfig({ ...kwargs, tools });
  }

  /** The parameters of a call without its messages, as traces show them. */
  override invocationParams(
    options?: this["ParsedCallOptions"],
  ): Omit<ChatCompletionCreateParamsNonStreaming, "messages"> {
    const { params, stop, tools = [], tool_choice: choice, response_format } = options ?? {};
    return {
      ...this.#params,
      ...params,
      ...(stop !== undefined && { stop }),
      ...(response_format !== undefined && { response_format }),
      ...(tools.length > 0 && {
        tools: tools.map((tool) => convertToOpenAITool(tool)),
        tool_choice: toolChoice(choice),
      }),
    };
  }

  /**
   * The number of tokens by the model's own tokenizer; for a Hybrid, a quarter of the number of characters. The base
   * class would download a tokenizer.
   */
  override async getNumTokens(content: BaseMessage["content"]): Promise<number> {
    const text =
      typeof content === "string" ? content : content.map((part) => ("text" in part ? String(part.text) : "")).join("");
    const { countTokens } = this.#source as Partial<Pick<EngineApi, "countTokens">>;
    return countTokens === undefined ? Math.ceil(text.length / 4) : countTokens.call(this.#source, text);
  }

  override async _generate(messages: BaseMessage[], options: this["ParsedCallOptions"]): Promise<ChatResult> {
    const params = { ...this.invocationParams(options), messages: messages.map(messageParam) };
    const answer = await this.#source.chat.completions.create(params, { signal: options.signal });
    const message = aiMessage(answer);
    const {
      prompt_tokens: promptTokens,
      completion_tokens: completionTokens,
      total_tokens: totalTokens,
    } = answer.usage;
    return {
      generations: [{ text: message.text, message }],
      llmOutput: { tokenUsage: { promptTokens, completionTokens, totalTokens } },
    };
  }

  override async *_streamResponseChunks(
    messages: BaseMessage[],
    options: this["ParsedCallOptions"],
    runManager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    const params = {
      ...this.invocationParams(options),
      messages: messages.map(messageParam),
      stream: true as const,
      stream_options: { include_usage: true },
    };
    const chunks = await this.#source.chat.completions.create(params, { signal: options.signal });
    for await (const chunk of appendOnly(chunks)) {
      const message = messageChunk(chunk);
      if (message === null) continue;
      const generation = new ChatGenerationChunk({ text: message.text, message });
      yield generation;
      await runManager?.handleLLMNewToken(message.text, undefined, undefined, undefined, undefined, {
        chunk: generation,
      });
    }
  }

  /**
   * A grammar enforces the schema. ``method`` is jsonSchema (the default), or jsonMode for any JSON object. Throws
   * RequestError for any other method: calling a function offers no more, and needs a model that supports tools.
   */
  override withStructuredOutput<Output extends Record<string, unknown> = Record<string, unknown>>(
    schema: Schema<Output>,
    config?: StructuredOutputMethodOptions,
  ): Runnable<Input, Output>;
  override withStructuredOutput<Output extends Record<string, unknown> = Record<string, unknown>>(
    schema: Schema<Output>,
    config: StructuredOutputMethodOptions<true>,
  ): Runnable<Input, Raw<Output>>;
  override withStructuredOutput(
    schema: Schema<Record<string, unknown>>,
    { name = "answer", method = "jsonSchema", includeRaw = false }: StructuredOutputMethodOptions<boolean> = {},
  ): Runnable<Input, never> {
    const format = formatOf(method, name, schema);
    return assembleStructuredOutputPipeline(
      this.withConfig({ response_format: format }),
      createContentParser(schema) as never,
      includeRaw,
    ) as never;
  }
}

function toolChoice(choice: BaseChatModelCallOptions["tool_choice"]): ChatCompletionToolChoiceOption | undefined {
  if (choice === undefined || choice === "auto" || choice === "none" || choice === "required") return choice;
  if (choice === "any") return "required";
  return typeof choice === "string"
    ? { type: "function", function: { name: choice } }
    : (choice as { readonly type: string });
}

function formatOf(method: string, name: string, schema: Schema<Record<string, unknown>>): ResponseFormat {
  if (method === "jsonMode") return { type: "json_object" };
  if (method !== "jsonSchema")
    throw new RequestError(
      `The method '${method}' of withStructuredOutput is not supported; use jsonSchema or jsonMode`,
      { param: "method" },
    );
  return { type: "json_schema", json_schema: { name, schema: toJsonSchema(schema as never), strict: true } };
}

const ROLES: Readonly<Record<string, "system" | "user" | "assistant" | "developer">> = {
  system: "system",
  human: "user",
  ai: "assistant",
  developer: "developer",
};

/** A message of OpenAI's API. Throws RequestError for messages and parts that have no equivalent. */
function messageParam(message: BaseMessage): ChatCompletionMessageParam {
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
    // LangChain also has the address alone.
    if (part.type === "image_url")
      return [typeof part.image_url === "string" ? { type: part.type, image_url: { url: part.image_url } } : part];
    if (part.type === "image" || part.type === "video") return [seenPart(part.type, addressOf(part))];
    if (part.type === "input_audio" || part.type === "video_url" || (part.type === "file" && "file" in part))
      return [part];
    if (part.type === "audio") return [soundPart(attached(part, "audio"))];
    if (part.type === "file" || part.type === "text-plain") return [partOfFile(part)];
    if (part.type === "reasoning" || part.type === "tool_call" || part.type === "tool_use") return [];
    throw new RequestError(
      `A message's part of type '${part.type}' is not supported; supported: text, image, image_url, video, video_url, audio, input_audio, file, text-plain`,
      {
        param: "messages",
      },
    );
  });
  return parts.every(({ type }) => type === "text") ? parts.map(({ text = "" }) => text).join("") : parts;
}

type Block = Readonly<Record<string, unknown>>;

/** Of an image or a video in one of LangChain's standard forms: an address, or base64 or bytes with their type. */
function addressOf(part: Block): string {
  if (typeof part.url === "string") return part.url;
  const { mediaType, data } = attached(part, part.type === "image" ? "image/png" : "video/mp4");
  return `data:${mediaType};base64,${base64Of(data)}`;
}

/** A file in one of LangChain's standard forms: a text, or base64 or bytes with their type. */
function partOfFile(part: Block): ChatCompletionContentPart {
  const { type, text, title } = part;
  if (typeof text !== "string") return filePart(attached(part, type === "file" ? "application/octet-stream" : "text"));
  const { filename, mediaType } = described(part, "text/plain");
  return textFilePart(text, mediaType, filename ?? (typeof title === "string" ? title : undefined));
}

/** ``otherwise``: the type of one without any. Throws RequestError for an address, or a reference to a file. */
function attached(part: Block, otherwise: string): Attached {
  const { type, url, data } = part;
  const inline = typeof url === "string" ? /^data:([^;,]+)?[^,]*;base64,([^]*)$/i.exec(url) : null;
  const { filename, mediaType } = described(part, inline?.[1] ?? otherwise);
  if (inline !== null) return { filename, mediaType, data: inline[2] ?? "" };
  if (typeof data === "string" || data instanceof Uint8Array) return { filename, mediaType, data };
  const given = typeof url === "string" ? "the address of a server, which is not fetched" : "neither url nor data";
  throw new RequestError(
    `The ${String(type)} of a message has ${given}; pass data. Files of a provider cannot be read`,
    {
      param: "messages",
    },
  );
}

/** LangChain's later name of the type, or its earlier one. The name of a file is among its metadata. */
function described(part: Block, otherwise: string): Pick<Attached, "filename" | "mediaType"> {
  const { mimeType = part.mime_type, metadata } = part;
  const { filename, name = filename } = Object(metadata) as Block;
  return {
    mediaType: typeof mimeType === "string" ? mimeType : otherwise,
    filename: typeof name === "string" ? name : undefined,
  };
}
