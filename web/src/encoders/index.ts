// Embedding models, rerankers and classifiers. This is a separate file, encoders.js, which a load imports for a bundle of
// such a model.

import type { ClassifyParams, RerankParams, ScoreParams } from "../api/encoder_types.js";
import type { ClassifyResponse, RerankResponse, ScoreResponse } from "../api/replies.js";
import type { CreateEmbeddingResponse, EmbeddingCreateParams, RequestOptions } from "../api/types.js";
import type { Gate } from "../engine/gate.js";
import type { TextRunner } from "../engine/step_runner.js";
import type { TunedEngine } from "../engine/tuner.js";
import type { DecisionSpec, Description } from "../runtime/manifest.js";
import type { Tokenizer } from "../text/tokenizer.js";
import { classify } from "./classify.js";
import { embed } from "./embeddings.js";
import type { EncoderModel, EncodingEngine } from "./encoder_model.js";
import { PagedEncoder } from "./paged_encoder.js";
import { RaggedEncoder } from "./ragged_encoder.js";
import { rerank, score } from "./ranking.js";
import { EncoderTokenizer } from "./tokenizer/encoder_tokenizer.js";
import { vectorTest } from "./vector_test.js";

/** What a loaded model of vectors or scores answers. */
export interface Encoder {
  embed(params: EmbeddingCreateParams, options: RequestOptions): Promise<CreateEmbeddingResponse<string | number[]>>;
  rerank(params: RerankParams, options: RequestOptions): Promise<RerankResponse>;
  score(params: ScoreParams, options: RequestOptions): Promise<ScoreResponse>;
  classify(params: ClassifyParams, options: RequestOptions): Promise<ClassifyResponse>;
  /** What `decide` reads; null for a model without a decision head. */
  readonly head: DecisionHead | null;
}

/** A decision head: the scores of each prompt's options, as `headLogprobs` reads them. */
export interface DecisionHead extends Pick<EncodingEngine, "encode"> {
  readonly decision: DecisionSpec;
}

/** A loaded bundle, and the device that runs it. */
export interface EncoderParts {
  readonly manifest: Pick<Description, "model" | "spec" | "embedding" | "classifier" | "tokenizer">;
  readonly runner: TextRunner;
  readonly tokenizer: Tokenizer;
  /** The text of tokenizer.json. */
  readonly tokenizerJson: string;
  /** Returns another runner after the device has failed, or throws. */
  readonly replaceRunner: () => Promise<TextRunner>;
  readonly gate: Gate;
}

export interface EncodersModule {
  /** Throws BundleError for a tokenizer that is not supported. */
  readonly open: (parts: EncoderParts) => { readonly encoder: Encoder; readonly engine: TunedEngine };
  readonly vectorTest: typeof vectorTest;
}

/**
 * The option `encoders` of Engine.load and serveEngine, for scripts that cannot import this file later, such as service
 * workers.
 */
export const encoders: EncodersModule = {
  vectorTest,
  open: ({ manifest, runner, tokenizer, tokenizerJson, replaceRunner, gate }) => {
    const { model: name, spec, embedding, classifier } = manifest;
    const read = new EncoderTokenizer(tokenizerJson, manifest.tokenizer, tokenizer);
    const engine =
      runner.limits.splitsTexts === false
        ? new RaggedEncoder(runner, classifier?.per_token ?? false, replaceRunner, gate)
        : new PagedEncoder(runner, replaceRunner, gate);
    const { context, vocabSize } = runner.limits;
    const numTokenTypes = spec.num_token_types;
    return {
      engine,
      encoder: encoderOf({ name, context, vocabSize, numTokenTypes, engine, tokenizer: read, embedding, classifier }),
    };
  },
};

export function encoderOf(model: EncoderModel): Encoder {
  const { decision = null } = model.classifier ?? {};
  return {
    embed: (params, options) => embed(model, params, options),
    rerank: (params, options) => rerank(model, params, options),
    score: (params, options) => score(model, params, options),
    classify: (params, options) => classify(model, params, options),
    head: decision === null ? null : { decision, encode: (texts, signal) => model.engine.encode(texts, signal) },
  };
}
