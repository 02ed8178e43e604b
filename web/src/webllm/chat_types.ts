// The types of chat completions under WebLLM's names. Requests are OpenAI's with a few fields of WebLLM's. Fields of
// the type ``never`` are errors.

import type * as ours from "../api/types.js";

export type { ChatCompletionToolCallDelta, TopLogprob } from "../api/types.js";

export interface ChatCompletionContentPartText {
  type: "text";
  text: string;
}

/** Read by a model that sees, whatever its `model_type`; others reject it. ``detail`` has no effect. */
export interface ChatCompletionContentPartImage {
  type: "image_url";
  image_url: { url: string; detail?: "auto" | "low" | "high" };
}

/** Extension: read by a model that reads videos, MP4 and WebM; others reject it. */
export interface ChatCompletionContentPartVideo {
  type: "video_url";
  video_url: { url: string };
}

/** Extension: read by a model that hears, or an engine with a transcriber; others reject it. */
export interface ChatCompletionContentPartInputAudio {
  type: "input_audio";
  input_audio: { data: string; format: "wav" | "mp3" };
}

/** Extension: text, Markdown, JSON or CSV as an address of `data:`. */
export interface ChatCompletionContentPartFile {
  type: "file";
  file: { filename?: string; file_data: string };
}

export type ChatCompletionContentPart =
  | ChatCompletionContentPartText
  | ChatCompletionContentPartImage
  | ChatCompletionContentPartVideo
  | ChatCompletionContentPartInputAudio
  | ChatCompletionContentPartFile;

export interface ChatCompletionMessageToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export type ChatCompletionRole = "system" | "user" | "assistant" | "tool" | "function";

export interface ChatCompletionSystemMessageParam {
  role: "system";
  content: string;
}

export interface ChatCompletionUserMessageParam {
  role: "user";
  content: string | ChatCompletionContentPart[];
  name?: string | undefined;
}

export interface ChatCompletionAssistantMessageParam {
  role: "assistant";
  content?: string | null | undefined;
  name?: string | undefined;
  tool_calls?: ChatCompletionMessageToolCall[] | undefined;
}

export interface ChatCompletionToolMessageParam {
  role: "tool";
  content: string;
  tool_call_id: string;
}

export type ChatCompletionMessageParam =
  | ChatCompletionSystemMessageParam
  | ChatCompletionUserMessageParam
  | ChatCompletionAssistantMessageParam
  | ChatCompletionToolMessageParam;

export type FunctionParameters = Record<string, unknown>;

export interface FunctionDefinition {
  name: string;
  description?: string | undefined;
  parameters?: FunctionParameters | undefined;
}

export interface ChatCompletionTool {
  type: "function";
  function: FunctionDefinition;
}

export interface ChatCompletionNamedToolChoice {
  type: "function";
  function: { name: string };
}

/** "required" is an extension. */
export type ChatCompletionToolChoiceOption = "none" | "auto" | "required" | ChatCompletionNamedToolChoice;

/**
 * ``schema`` is the text of a JSON schema that constrains the answer, ``grammar`` an EBNF grammar that starts from its
 * rule root. The last two types are extensions.
 */
export interface ResponseFormat {
  type?: "text" | "json_object" | "grammar" | "json_schema" | "regex" | undefined;
  schema?: string | undefined;
  grammar?: string | undefined;
  json_schema?:
    | { name?: string; schema?: Record<string, unknown> | undefined; strict?: boolean | null | undefined }
    | undefined;
  pattern?: string | undefined;
  structural_tag?: never;
}

export interface ChatCompletionStreamOptions {
  include_usage?: boolean;
}

/** The parameters of both chats and text completions. Null is the same as leaving a parameter out. */
export interface GenerationParams {
  /** The id of a loaded model; required if the engine has several. */
  model?: string | null | undefined;
  n?: number | null | undefined;
  temperature?: number | null | undefined;
  top_p?: number | null | undefined;
  frequency_penalty?: number | null | undefined;
  presence_penalty?: number | null | undefined;
  repetition_penalty?: number | null | undefined;
  max_tokens?: number | null | undefined;
  stop?: string | string[] | null | undefined;
  logit_bias?: Record<string, number> | null | undefined;
  logprobs?: boolean | null | undefined;
  top_logprobs?: number | null | undefined;
  seed?: number | null | undefined;
  stream_options?: ChatCompletionStreamOptions | null | undefined;
  /** Must be false: an answer ends at the model's end token. */
  ignore_eos?: false | undefined;
}

/** ``enable_latency_breakdown: true`` is an error, and so is any ``resumable``. */
export interface ExtraBody {
  enable_thinking?: boolean | null | undefined;
  enable_latency_breakdown?: false | null | undefined;
  resumable?: null | undefined;
}

export interface ChatCompletionRequestBase extends GenerationParams {
  messages: ChatCompletionMessageParam[];
  stream?: boolean | null | undefined;
  tools?: ChatCompletionTool[] | undefined;
  tool_choice?: ChatCompletionToolChoiceOption | undefined;
  response_format?: ResponseFormat | undefined;
  extra_body?: ExtraBody | undefined;
}

export interface ChatCompletionRequestNonStreaming extends ChatCompletionRequestBase {
  stream?: false | null | undefined;
}

export interface ChatCompletionRequestStreaming extends ChatCompletionRequestBase {
  stream: true;
}

export type ChatCompletionRequest = ChatCompletionRequestNonStreaming | ChatCompletionRequestStreaming;

/** The settings of one generation, for applications that store them. */
export interface GenerationConfig extends Omit<GenerationParams, "model" | "seed" | "stream_options"> {
  response_format?: ResponseFormat | null | undefined;
  enable_thinking?: boolean | null | undefined;
  enable_latency_breakdown?: false | null | undefined;
}

export type ChatCompletionTokenLogprob = Omit<ours.ChatCompletionTokenLogprob, "token_id">;

export interface Logprobs {
  content: ChatCompletionTokenLogprob[] | null;
}

/** "abort": interruptGenerate ended the answer. */
export type ChatCompletionFinishReason = "stop" | "length" | "tool_calls" | "abort";

export interface ChatCompletionMessage {
  role: "assistant";
  content: string | null;
  tool_calls?: ChatCompletionMessageToolCall[];
}

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  extra: UsageExtra;
}

/** Seconds, and tokens per second. The last two are 0 for an answer of one token. */
export interface UsageExtra {
  e2e_latency_s: number;
  time_to_first_token_s: number;
  prefill_tokens_per_s: number;
  decode_tokens_per_s: number;
  time_per_output_token_s: number;
}

type Head = "id" | "object" | "created" | "model";

export interface ChatCompletion extends Pick<ours.ChatCompletion, Head> {
  choices: ChatCompletionChoice[];
  usage?: CompletionUsage;
  system_fingerprint?: string;
}

export interface ChatCompletionChoice {
  index: number;
  message: ChatCompletionMessage;
  logprobs: Logprobs | null;
  finish_reason: ChatCompletionFinishReason;
}

/** With stream_options.include_usage, the last chunk has the usage and no choices. */
export interface ChatCompletionChunk extends Pick<ours.ChatCompletionChunk, Head> {
  choices: ChatCompletionChunkChoice[];
  usage?: CompletionUsage;
  system_fingerprint?: string;
}

export interface ChatCompletionChunkChoice {
  index: number;
  delta: ChatCompletionDelta;
  logprobs?: Logprobs | null;
  finish_reason: ChatCompletionFinishReason | null;
}

export interface ChatCompletionDelta {
  role?: "system" | "user" | "assistant" | "tool";
  content?: string | null;
  tool_calls?: ours.ChatCompletionToolCallDelta[];
}

// The namespaces below give the same types WebLLM's nested names.
/* oxlint-disable typescript/no-namespace */

type AnswerLogprobs = Logprobs;
type CalledFunction = ChatCompletionMessageToolCall["function"];

export declare namespace ChatCompletion {
  type Choice = ChatCompletionChoice;
  namespace Choice {
    type Logprobs = AnswerLogprobs;
  }
}

export declare namespace ChatCompletionChunk {
  type Choice = ChatCompletionChunkChoice;
  namespace Choice {
    type Delta = ChatCompletionDelta;
    type Logprobs = AnswerLogprobs;
    namespace Delta {
      type ToolCall = ours.ChatCompletionToolCallDelta;
    }
  }
}

export declare namespace ChatCompletionContentPartImage {
  type ImageURL = ChatCompletionContentPartImage["image_url"];
}

export declare namespace ChatCompletionMessageToolCall {
  type Function = CalledFunction;
}
