// @nearfar/web/ai-sdk: a provider for Vercel's AI SDK 7 (`ai`), whose models run on this device.

import type { EmbeddingModelV4, LanguageModelV4 } from "@ai-sdk/provider";

import type { ChatSource, EmbeddingSource } from "../api/chat_source.js";
import { modelName } from "../api/chat_source.js";
import { RequestError } from "../errors.js";
import { languageModel } from "./language_model.js";

export type { ChatSource, EmbeddingSource } from "../api/chat_source.js";
export { NearfarError, RequestError, Unavailable } from "../errors.js";

/** A model's id is for logs only, because an engine has one model. */
export interface NearfarProvider {
  (modelId?: string): LanguageModelV4;
  readonly specificationVersion: "v4";
  languageModel(modelId?: string): LanguageModelV4;
  /** Throws RequestError for a source without embeddings. */
  embeddingModel(modelId?: string): EmbeddingModelV4;
  /** Always throws RequestError. */
  imageModel(modelId?: string): never;
}

/**
 * Makes the AI SDK's models from an Engine, an engine in a worker, or a Hybrid. Set extensions of the engine, such as
 * `min_p`, and of a Hybrid, such as `pin`, in `providerOptions.nearfar`. `providerMetadata.nearfar` contains the route
 * and the timings of an answer.
 */
export function createNearfar(source: ChatSource | EmbeddingSource): NearfarProvider {
  const language = (modelId = modelName(source)): LanguageModelV4 => {
    if (!("chat" in source))
      throw new RequestError(
        "This source has no chat.completions; pass createNearfar an Engine, an engine in a worker, or a Hybrid",
      );
    return languageModel(source, modelId);
  };
  return Object.assign((modelId?: string) => language(modelId), {
    specificationVersion: "v4" as const,
    languageModel: language,
    embeddingModel: (modelId = modelName(source)): EmbeddingModelV4 => {
      if (!("embeddings" in source))
        throw new RequestError(
          "This source has no embeddings; pass createNearfar an engine with an embedding model's bundle",
        );
      return embeddingModel(source, modelId);
    },
    imageModel: (): never => {
      throw new RequestError("nearfar has no image models; use languageModel or embeddingModel");
    },
  });
}

/** The model is implemented with embeddings.create. */
function embeddingModel(source: EmbeddingSource, modelId: string): EmbeddingModelV4 {
  return {
    specificationVersion: "v4",
    provider: "nearfar",
    modelId,
    maxEmbeddingsPerCall: Infinity,
    // Parallel requests would run one after the other, but the inputs of one request share batches.
    supportsParallelCalls: false,
    async doEmbed({ values, dimensions, abortSignal }) {
      const { data, usage } = await source.embeddings.create({ input: values, dimensions }, { signal: abortSignal });
      return {
        embeddings: data.map(({ embedding }) => embedding),
        usage: { tokens: usage.prompt_tokens },
        warnings: [],
      };
    },
  };
}
