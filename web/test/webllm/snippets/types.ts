// Values as applications of WebLLM create and read them. tsc checks them against the published types; nothing runs.

import * as webllm from "@nearfar/web/webllm";

/** Fails to compile unless ``From`` is assignable to ``To``. */
type Accepts<To, From extends To> = From;

interface AppRecord {
  model: string;
  model_id: string;
  model_lib: string;
  overrides?: { context_window_size?: number; temperature?: number; repetition_penalty?: number };
  vram_required_MB?: number;
  low_resource_required?: boolean;
  buffer_size_required_bytes?: number;
  required_features?: Array<string>;
}

interface AppMessage {
  role: "assistant";
  content: string | null;
  tool_calls?: Array<{ id: string; type: "function"; function: { name: string; arguments: string } }>;
}

interface AppRequest {
  messages: Array<
    | { role: "system"; content: string }
    | { role: "user"; content: string; name?: string }
    | AppMessage
    | { role: "tool"; content: string; tool_call_id: string }
  >;
  stream: true;
  stream_options?: { include_usage?: boolean } | null;
  model?: string | null;
  n?: number | null;
  max_tokens?: number | null;
  stop?: string | null | Array<string>;
  logit_bias?: Record<string, number> | null;
  tools?: Array<{
    type: "function";
    function: { name: string; description?: string; parameters?: Record<string, unknown> };
  }>;
  tool_choice?: "none" | "auto" | { type: "function"; function: { name: string } };
  response_format?: { type?: "text" | "json_object" | "grammar"; schema?: string; grammar?: string };
  extra_body?: { enable_thinking?: boolean | null };
}

interface AppProcessor {
  processLogits: (logits: Float32Array) => Float32Array;
  processSampledToken: (token: number) => void;
  resetState: () => void;
}

/** An engine as declared by an application's own wrapper. */
interface AppEngine {
  reload(modelId: string | string[], chatOpts?: webllm.ChatOptions | webllm.ChatOptions[]): Promise<void>;
  unload(): Promise<void>;
  interruptGenerate(): void;
  resetChat(keepStats?: boolean, modelId?: string): Promise<void>;
  getMessage(modelId?: string): Promise<string>;
  runtimeStatsText(modelId?: string): Promise<string>;
  getMaxStorageBufferBindingSize(): Promise<number>;
  getGPUVendor(): Promise<string>;
  forwardTokensAndSample(inputIds: Array<number>, isPrefill: boolean, modelId?: string): Promise<number>;
  setInitProgressCallback(callback: (report: { progress: number; timeElapsed: number; text: string }) => void): void;
  setAppConfig(appConfig: webllm.AppConfig): void;
  setLogLevel(level: "TRACE" | "DEBUG" | "INFO" | "WARN" | "ERROR" | "SILENT"): void;
}

interface AppUsage {
  completion_tokens: number;
  prompt_tokens: number;
  total_tokens: number;
  extra: {
    e2e_latency_s: number;
    prefill_tokens_per_s: number;
    decode_tokens_per_s: number;
    time_to_first_token_s: number;
    time_per_output_token_s: number;
  };
}

interface AppAnswer {
  id: string;
  choices: Array<{ index: number; finish_reason: "stop" | "length" | "tool_calls" | "abort"; message: AppMessage }>;
  model: string;
  object: "chat.completion";
  created: number;
  usage?: AppUsage;
}

interface AppChunk {
  id: string;
  choices: Array<{
    index: number;
    delta: { content?: string | null };
    finish_reason: "stop" | "length" | "tool_calls" | "abort" | null;
  }>;
  usage?: AppUsage;
}

export type Given = [
  Accepts<webllm.ModelRecord, AppRecord>,
  Accepts<webllm.AppConfig, { model_list: AppRecord[]; cacheBackend?: "cache" | "indexeddb" | "opfs" }>,
  Accepts<webllm.ChatCompletionRequest, AppRequest>,
  Accepts<webllm.ChatCompletionRequestStreaming, AppRequest>,
  Accepts<webllm.ChatCompletionMessageParam, AppMessage>,
  Accepts<webllm.LogitProcessor, AppProcessor>,
  Accepts<webllm.MLCEngineConfig, { logitProcessorRegistry: Map<string, AppProcessor>; logLevel: "WARN" }>,
  Accepts<
    webllm.GenerationConfig,
    { temperature?: number | null; stop?: string | null | Array<string>; max_tokens?: number | null }
  >,
  Accepts<
    webllm.EmbeddingCreateParams,
    { input: string | Array<string> | Array<number> | Array<Array<number>>; model?: string | null }
  >,
  Accepts<
    webllm.CompletionCreateParams,
    { prompt: string; echo?: boolean | null; logprobs?: boolean | null; stream?: false | null }
  >,
];

export type Read = [
  Accepts<AppEngine, webllm.MLCEngineInterface>,
  Accepts<AppEngine, webllm.MLCEngine>,
  Accepts<AppEngine, webllm.WebWorkerMLCEngine>,
  Accepts<AppEngine, webllm.ServiceWorkerMLCEngine>,
  Accepts<AppEngine, webllm.ExtensionServiceWorkerMLCEngine>,
  Accepts<AppAnswer, webllm.ChatCompletion>,
  Accepts<AppChunk, webllm.ChatCompletionChunk>,
  Accepts<AppMessage, webllm.ChatCompletionMessage>,
  Accepts<{ message: AppMessage }, webllm.ChatCompletion.Choice>,
  Accepts<
    { data: Array<{ embedding: Array<number>; index: number }>; usage: { extra: { prefill_tokens_per_s: number } } },
    webllm.CreateEmbeddingResponse
  >,
];

// The types also refuse unsupported options.
// @ts-expect-error a bundle's attention window is compiled in
export const windowed: webllm.ChatOptions = { sliding_window_size: 1024 };
// @ts-expect-error a bundle has its chat template
export const templated: webllm.ChatOptions = { conv_template: {} };
// @ts-expect-error an answer ends at the model's end token
export const endless: webllm.ChatCompletionRequest = { messages: [], ignore_eos: true };
// @ts-expect-error a bundle's files are checked against its manifest
export const signed: webllm.ModelRecord = { model: "./a/", model_id: "a", integrity: {} };
