// A fake model of vectors or scores: one token for each byte, and results that show what the engine received.

import type { EncoderModel, TokenText } from "../../src/encoders/encoder_model.js";
import { EncoderTokenizer } from "../../src/encoders/tokenizer/encoder_tokenizer.js";
import type { ClassifierSpec, EmbeddingSpec } from "../../src/runtime/manifest.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";

export const EMBEDDING: EmbeddingSpec = {
  pooling: "mean",
  normalize: false,
  size: 4,
  dense: [],
  prompts: [],
  default_prompt: null,
  dimensions: [],
};

export const CLASSIFIER: ClassifierSpec = {
  labels: ["LABEL_0"],
  activation: "none",
  per_token: false,
  pooling: "cls",
  pools_late: false,
  relevance: 0,
  template: null,
  instruction: null,
  transitions: null,
  decision: null,
};

export interface FakeEncoder {
  readonly model: EncoderModel;
  readonly inputs: TokenText[];
}

/** By default, a vector is (the number of tokens, the last token, 0, 0). */
export function fakeEncoder(
  rest: Partial<EncoderModel> = {},
  results: (text: TokenText) => readonly number[] = ({ ids }) => [ids.length, ids.at(-1) ?? 0, 0, 0],
): FakeEncoder {
  const inputs: TokenText[] = [];
  const tokenizer = new Tokenizer(byteLevelTokenizer(), NO_TOKENS);
  return {
    inputs,
    model: {
      name: "fake",
      context: 16,
      vocabSize: 300,
      numTokenTypes: 2,
      engine: {
        encode: (texts, signal) => {
          signal?.throwIfAborted();
          inputs.push(...texts);
          return Promise.resolve(texts.map((text) => Float32Array.from(results(text))));
        },
      },
      tokenizer: new EncoderTokenizer(byteLevelTokenizer(), NO_TOKENS, tokenizer),
      embedding: EMBEDDING,
      classifier: null,
      ...rest,
    },
  };
}
