// The interface of WebLLM's engines, on the page and in a worker.

import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionRequest,
  ChatCompletionRequestBase,
  ChatCompletionRequestNonStreaming,
  ChatCompletionRequestStreaming,
} from "./chat_types.js";
import type {
  Completion,
  CompletionCreateParams,
  CompletionCreateParamsBase,
  CompletionCreateParamsNonStreaming,
  CompletionCreateParamsStreaming,
  CreateEmbeddingResponse,
  EmbeddingCreateParams,
} from "./completion_types.js";
import type { AppConfig, ChatOptions } from "./config.js";

/** ``progress`` from 0 to 1, ``timeElapsed`` in seconds. */
export interface InitProgressReport {
  progress: number;
  timeElapsed: number;
  text: string;
}

export type InitProgressCallback = (report: InitProgressReport) => void;

/** Accepted without effect: nothing is logged. */
export type LogLevel = "TRACE" | "DEBUG" | "INFO" | "WARN" | "ERROR" | "SILENT";

/** Changes the logits of a model on the host. With a logit processor, the model's requests run one after the other. */
export interface LogitProcessor {
  /**
   * Receives the logits (V,) before the grammar, the bias and the penalties apply, and returns the logits to sample
   * from. -Infinity excludes a token.
   */
  processLogits: (logits: Float32Array) => Float32Array;
  /** Receives each sampled token, including the one that ends the answer. */
  processSampledToken: (token: number) => void;
  /** Called by resetChat, and before a request that does not continue the last conversation. */
  resetState: () => void;
}

export interface CreateChatCompletion {
  (request: ChatCompletionRequestNonStreaming): Promise<ChatCompletion>;
  (request: ChatCompletionRequestStreaming): Promise<AsyncIterable<ChatCompletionChunk>>;
  (
    request: ChatCompletionRequestBase | ChatCompletionRequest,
  ): Promise<AsyncIterable<ChatCompletionChunk> | ChatCompletion>;
}

export interface CreateCompletion {
  (request: CompletionCreateParamsNonStreaming): Promise<Completion>;
  (request: CompletionCreateParamsStreaming): Promise<AsyncIterable<Completion>>;
  (request: CompletionCreateParamsBase | CompletionCreateParams): Promise<AsyncIterable<Completion> | Completion>;
}

export type CreateEmbedding = (request: EmbeddingCreateParams) => Promise<CreateEmbeddingResponse>;

export interface Chat {
  completions: { create: CreateChatCompletion };
}

export interface Completions {
  create: CreateCompletion;
}

export interface Embeddings {
  create: CreateEmbedding;
}

/** A model id is needed only if several models are loaded. */
export interface MLCEngineInterface {
  chat: Chat;
  completions: Completions;
  embeddings: Embeddings;
  chatCompletion: CreateChatCompletion;
  completion: CreateCompletion;
  embedding: CreateEmbedding;
  /**
   * Replaces the loaded models. Throws RequestError, BundleError or DeviceError. If `unload` or another `reload` is called
   * before it has finished, it resolves, and the progress callback receives "The load of MODEL was ended".
   */
  reload: (modelId: string | string[], chatOpts?: ChatOptions | ChatOptions[]) => Promise<void>;
  /** Ends all requests and frees all models. */
  unload: () => Promise<void>;
  /** Ends the running answers. Each keeps its text so far, with finish_reason "abort". */
  interruptGenerate: () => void;
  /** Forgets the last answer; with ``keepStats`` its statistics stay. Only the messages contain a chat's history. */
  resetChat: (keepStats?: boolean, modelId?: string) => Promise<void>;
  /** The text of the last answer. */
  getMessage: (modelId?: string) => Promise<string>;
  runtimeStatsText: (modelId?: string) => Promise<string>;
  /**
   * Appends these ids to the token ids of the previous calls (since the last `resetChat` or other request), samples the
   * next token, and returns it.
   */
  forwardTokensAndSample: (inputIds: number[], isPrefill: boolean, modelId?: string) => Promise<number>;
  setInitProgressCallback: (callback: InitProgressCallback) => void;
  getInitProgressCallback: () => InitProgressCallback | undefined;
  setAppConfig: (appConfig: AppConfig) => void;
  setLogLevel: (logLevel: LogLevel) => void;
  /** In bytes, for the adapter that the browser chooses. Throws DeviceError if there is no adapter. */
  getMaxStorageBufferBindingSize: () => Promise<number>;
  /** Such as "apple" or "arm"; empty if the browser does not report it. Throws DeviceError if there is no adapter. */
  getGPUVendor: () => Promise<string>;
}
