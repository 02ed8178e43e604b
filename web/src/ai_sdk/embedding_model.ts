// The AI SDK's embedding model, implemented with embeddings.create.

import type { EmbeddingModelV4 } from "@ai-sdk/provider";

import type { EmbeddingSource } from "../api/chat_source.js";

export function embeddingModel(source: EmbeddingSource, modelId: string): EmbeddingModelV4 {
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
