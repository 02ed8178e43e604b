// The candidates of chooseEncoder: whatever makes vectors from texts, with one interface.

import type { VectorClient } from "../../api/vector_client.js";
import { RequestError, Unavailable } from "../../errors.js";

export interface EncoderCandidate {
  /** Its name in results and messages. */
  readonly name: string;
  /** The device that computes, if it is known: another device is measured again. */
  readonly device?: string | undefined;
  /** A vector for each text. Throws RequestError for a wrong text, or the signal's reason. */
  embed(texts: readonly string[], signal: AbortSignal): Promise<readonly ArrayLike<number>[]>;
}

/**
 * An engine on this page or in a worker, or a server through a client of OpenAI's API. ``params`` accompany each
 * request, such as the `model` of a server.
 */
export function clientCandidate(
  name: string,
  client: VectorClient<{ readonly input: string[]; readonly model: string }> & {
    readonly info?: { readonly adapter: string };
  },
  params: Readonly<Record<string, unknown>> = {},
): EncoderCandidate {
  return {
    name,
    device: client.info?.adapter,
    embed: async (texts, signal) => {
      const { data } = await client.embeddings.create(
        // An engine needs no model, and a server's is in params.
        { ...params, input: [...texts] } as { input: string[]; model: string },
        { signal },
      );
      return [...data].sort((a, b) => a.index - b.index).map(({ embedding }) => embedding);
    },
  };
}

/** The part of Transformers.js' pipeline for "feature-extraction" that is used. */
export interface FeatureExtractor {
  (
    texts: string[],
    options: { readonly pooling: "mean" | "cls" | "last_token"; readonly normalize: boolean },
  ): Promise<{ tolist(): unknown }>;
  readonly tokenizer: { encode(text: string): readonly unknown[]; readonly model_max_length?: number };
}

export interface ExtractionOptions {
  /** How the vector of a text is made from its tokens'; "mean" by default. */
  readonly pooling?: "mean" | "cls" | "last_token" | undefined;
  /** Whether vectors have length 1; true by default. */
  readonly normalize?: boolean | undefined;
  /** The number of texts that are padded together; 8 by default. */
  readonly batchSize?: number | undefined;
}

/**
 * A pipeline of Transformers.js, on any of its devices. The page brings the library and its model. A text that is longer
 * than the tokenizer's `model_max_length`, which the pipeline would shorten, is a RequestError.
 */
export function pipelineCandidate(
  name: string,
  extract: FeatureExtractor,
  { pooling = "mean", normalize = true, batchSize = 8 }: ExtractionOptions = {},
): EncoderCandidate {
  const { tokenizer } = extract;
  const limit = tokenizer.model_max_length ?? Infinity;
  return {
    name,
    embed: async (texts, signal) => {
      for (const text of texts) {
        // A token has at least one character, and special tokens are few.
        const tokens = text.length + 8 > limit ? tokenizer.encode(text).length : 0;
        if (tokens > limit)
          throw new RequestError(`a text has ${tokens} tokens, and '${name}' reads ${limit}; shorten it`);
      }
      // The texts of a batch are padded to the longest one, so texts of similar lengths share one.
      const order = texts.map((_, index) => index).sort((a, b) => (texts[a]?.length ?? 0) - (texts[b]?.length ?? 0));
      const vectors: ArrayLike<number>[] = [];
      for (let start = 0; start < order.length; start += batchSize) {
        signal.throwIfAborted();
        const some = order.slice(start, start + batchSize);
        const found = await extract(
          some.map((index) => texts[index] ?? ""),
          { pooling, normalize },
        );
        const rows = found.tolist() as readonly (readonly number[])[];
        some.forEach((index, row) => {
          vectors[index] = rows[row] ?? [];
        });
      }
      return vectors;
    },
  };
}

/** The vectors of a candidate. Throws Unavailable if they are not one vector of numbers for each text. */
export async function vectorsOf(
  candidate: EncoderCandidate,
  texts: readonly string[],
  signal: AbortSignal,
): Promise<readonly Float32Array[]> {
  const vectors = (await candidate.embed(texts, signal)).map((vector) => Float32Array.from(vector));
  signal.throwIfAborted();
  const isWrong = (vector: Float32Array): boolean => vector.length === 0 || !vector.every(Number.isFinite);
  if (vectors.length !== texts.length || vectors.some(isWrong))
    throw new Unavailable(`'${candidate.name}' returned no vector of numbers for some of ${texts.length} texts`, {
      retryable: false,
    });
  return vectors;
}
