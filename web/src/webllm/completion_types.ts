// The types of text completions and embeddings under WebLLM's names.

import type * as ours from "../api/types.js";
import type {
  ChatCompletionFinishReason,
  CompletionUsage,
  ExtraBody,
  GenerationParams,
  Logprobs,
} from "./chat_types.js";

/** The prompt is continued unchanged, without the chat template. ``logprobs`` are those of chats. */
export interface CompletionCreateParamsBase extends GenerationParams {
  prompt: string;
  echo?: boolean | null | undefined;
  stream?: boolean | null | undefined;
  user?: string | undefined;
  suffix?: null | undefined;
  best_of?: null | undefined;
  extra_body?: Pick<ExtraBody, "enable_latency_breakdown"> | undefined;
}

export interface CompletionCreateParamsNonStreaming extends CompletionCreateParamsBase {
  stream?: false | null | undefined;
}

export interface CompletionCreateParamsStreaming extends CompletionCreateParamsBase {
  stream: true;
}

export type CompletionCreateParams = CompletionCreateParamsNonStreaming | CompletionCreateParamsStreaming;

export interface CompletionChoice {
  index: number;
  text: string;
  logprobs?: Logprobs | null;
  finish_reason: ChatCompletionFinishReason | null;
}

/** An answer, or a chunk of one, whose finish_reason is null until its end. */
export interface Completion extends Pick<ours.Completion, "id" | "object" | "created" | "model"> {
  choices: CompletionChoice[];
  usage?: CompletionUsage;
  system_fingerprint?: string;
}

export interface EmbeddingCreateParams {
  input: string | string[] | number[] | number[][];
  /** The id of a loaded model; required if the engine has several. */
  model?: string | null | undefined;
  /** With "base64", a vector is the base64 of its float32 bytes instead of a list of numbers. */
  encoding_format?: "float" | "base64" | undefined;
  /** Extension: keeps the first ``dimensions`` numbers of each vector. */
  dimensions?: number | undefined;
  user?: string | undefined;
}

export interface Embedding {
  object: "embedding";
  index: number;
  embedding: number[];
}

export interface CreateEmbeddingResponse {
  object: "list";
  data: Embedding[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number; extra: { prefill_tokens_per_s: number } };
}
