// The interface of an engine, wherever it runs: on the page, in a worker or in a service worker. Engine implements it,
// and connectEngine returns it for a worker.

import type { Transcribe } from "../audio/index.js";
import type { DecideOptions, DecideResponse, Questions } from "../decide/index.js";
import type { Engine, EngineInfo } from "../engine.js";
import type { ChatMessage, GenerateOptions, GenerationEvent } from "../generation.js";
import type { Session, SessionOptions } from "../session.js";
import type { ChatPromptOptions } from "./chat_prompt.js";
import type { ChatCompletions } from "./chat_completions.js";
import type { Completions } from "./completions.js";
import type { ClassifyParams, RerankParams, ScoreParams } from "./encoder_types.js";
import type { ClassifyResponse, RerankResponse, ScoreResponse } from "./replies.js";
import type {
  ChatCompletionMessageParam,
  CreateEmbeddingResponse,
  EmbeddingCreateParams,
  RequestOptions,
} from "./types.js";

/** OpenAI's embeddings, computed by an embedding model. Inputs are one or several texts or lists of token ids. */
export interface Embeddings {
  /** The vector of each input, in their order. Throws RequestError, DeviceError, or the signal's reason. */
  create(
    params: EmbeddingCreateParams & { readonly encoding_format: "base64" },
    options?: RequestOptions,
  ): Promise<CreateEmbeddingResponse<string>>;
  create(params: EmbeddingCreateParams, options?: RequestOptions): Promise<CreateEmbeddingResponse>;
}

export interface EngineApi {
  readonly info: EngineInfo;
  readonly chat: { readonly completions: Pick<ChatCompletions, "create"> };
  readonly completions: Pick<Completions, "create">;
  readonly embeddings: Embeddings;
  /** Orders documents by their relevance to a query, by a reranker or an embedding model. */
  rerank(params: RerankParams, options?: RequestOptions): Promise<RerankResponse>;
  /** The relevance of each of the second texts to the first one, or to that of its index. */
  score(params: ScoreParams, options?: RequestOptions): Promise<ScoreResponse>;
  /** The labels of texts, or of their tokens, by a classifier. */
  classify(params: ClassifyParams, options?: RequestOptions): Promise<ClassifyResponse>;
  /** How likely each answer to typed questions about a context is; see `Engine.decide`. */
  decide(
    context: string | readonly ChatCompletionMessageParam[],
    questions: Questions,
    options?: DecideOptions,
  ): Promise<DecideResponse>;
  generate(
    prompt: string | readonly ChatMessage[],
    options?: GenerateOptions,
  ): AsyncGenerator<GenerationEvent, void, undefined>;
  /** The transcript of sound; see `Engine.transcribe`. */
  readonly transcribe: Transcribe;
  /** The number of tokens of a text, or of a chat's prompt. Throws RequestError. */
  countTokens(prompt: string | readonly ChatCompletionMessageParam[], options?: ChatPromptOptions): Promise<number>;
  /**
   * Leaves the device alone until `resume`; running answers wait. Resolves when the device has no more work. The pause
   * applies to everyone who shares the engine.
   */
  pause(): Promise<void>;
  resume(): Promise<void>;
  destroy(): void;
}

/** A conversation whose keys and values stay on the device; see `Session`. */
export type SessionApi = Pick<Session, keyof Session>;

/** An engine with sessions and adapters: `Engine`, and an engine in a worker. */
export interface EngineWithSessions extends EngineApi, Pick<Engine, "loadAdapter" | "unloadAdapter" | "listAdapters"> {
  /** Close the session at the end. */
  createSession(options?: SessionOptions): SessionApi;
}
