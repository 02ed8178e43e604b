// A model that makes vectors or scores: its engine, its tokenizer, and what its manifest says about its results.

import { DeviceError } from "../errors.js";
import type { ClassifierSpec, EmbeddingSpec } from "../runtime/manifest.js";
import type { JoinedTokens, Tokens } from "./tokenizer/encoder_tokenizer.js";

/** The token ids of a text, and the type of each; without types, all are of type 0. */
export interface TokenText {
  readonly ids: readonly number[];
  readonly types?: readonly number[] | undefined;
}

export interface EncodingEngine {
  /** The results for each text: a vector, scores, or the scores of its tokens. Throws DeviceError, RequestError. */
  encode(texts: readonly TokenText[], signal?: AbortSignal): Promise<readonly Float32Array[]>;
}

/** The results of a request. Throws DeviceError if they are not numbers. */
export function requireNumbers(results: readonly Float32Array[]): readonly Float32Array[] {
  if (results.every((rows) => rows.every(Number.isFinite))) return results;
  throw new DeviceError(
    "The device computed results that are not numbers; load the model again, or report it with the device's name",
  );
}

export interface TextTokenizer {
  /** The tokens of a text, or of a beginning that has more than ``count``. */
  tokens(text: string, count?: number): Tokens;
  /** Whether a text is known to have more than ``count`` tokens. Short texts are not read. */
  exceeds(text: string, count: number): boolean;
  joined(first: Tokens, second: Tokens | null): JoinedTokens;
  numAdded(isPair: boolean): number;
  beginning(text: string, count: number): string;
  /** The ids of a template with {name} for each value. */
  template(template: string, values: Readonly<Record<string, string>>): readonly number[];
}

export interface EncoderModel {
  readonly name: string;
  readonly context: number;
  readonly vocabSize: number;
  /** The number of types of tokens that the model distinguishes; 0 if it has none. */
  readonly numTokenTypes: number;
  readonly engine: EncodingEngine;
  readonly tokenizer: TextTokenizer;
  /** Null for a model of scores. */
  readonly embedding: EmbeddingSpec | null;
  /** Null for a model of vectors. */
  readonly classifier: ClassifierSpec | null;
}
