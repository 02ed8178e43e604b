// What every engine of WebLLM's kind does, on the page or through a worker.

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

/** Accepted, and without effect: nothing is logged. */
export type LogLevel = "TRACE" | "DEBUG" | "INFO" | "WARN" | "ERROR" | "SILENT";

/** Changes the logits of a model on the host. The requests of a model that has one run one after the other. */
export interface LogitProcessor {
  /**
   * Gets the logits (V,) before the grammar, the bias and the penalties apply, and returns those to sample from.
   * -Infinity excludes a token.
   */
  processLogits: (logits: Float32Array) => Float32Array;
  /** Gets each sampled token, the one that ends the answer included. */
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
   * Loads models in place of those before. Throws RequestError, BundleError, DeviceError, or an AbortError if another
   * `reload` or `unload` came between.
   */
  reload: (modelId: string | string[], chatOpts?: ChatOptions | ChatOptions[]) => Promise<void>;
  /** Ends what runs and frees all models. */
  unload: () => Promise<void>;
  /** Ends what is being generated. Its text so far is the answer, with finish_reason "abort". */
  interruptGenerate: () => void;
  /** Forgets the last answer; with ``keepStats`` its figures stay. A chat's history is in its messages alone. */
  resetChat: (keepStats?: boolean, modelId?: string) => Promise<void>;
  /** The text of the last answer. */
  getMessage: (modelId?: string) => Promise<string>;
  runtimeStatsText: (modelId?: string) => Promise<string>;
  /**
   * Continues the token ids of the calls before, since the last `resetChat` or other request, by these ids and one
   * sampled token, which it returns.
   */
  forwardTokensAndSample: (inputIds: number[], isPrefill: boolean, modelId?: string) => Promise<number>;
  setInitProgressCallback: (callback: InitProgressCallback) => void;
  getInitProgressCallback: () => InitProgressCallback | undefined;
  setAppConfig: (appConfig: AppConfig) => void;
  setLogLevel: (logLevel: LogLevel) => void;
  /** In bytes, of the adapter that the browser chooses. Throws DeviceError if there is none. */
  getMaxStorageBufferBindingSize: () => Promise<number>;
  /** Such as "apple" or "arm"; empty if the browser does not say. Throws DeviceError if there is no adapter. */
  getGPUVendor: () => Promise<string>;
}
