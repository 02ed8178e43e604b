// Written by server_fallback/schema/typescript.py from compiler/ir/sampling.py: edit those files.

/** How the next token is chosen. */
export interface SamplingOptions {
  /** Added to the logits of these tokens. */
  readonly logitBias?: ReadonlyMap<number, number> | undefined;
  /** 0 always chooses the most likely token. Default: 0. */
  readonly temperature?: number | undefined;
  /** Choose among this number of the most likely tokens; 0 for all. Default: 0. */
  readonly topK?: number | undefined;
  /** Choose among the most likely tokens whose probabilities add up to this value; 1 for all. Default: 1. */
  readonly topP?: number | undefined;
  /** Choose among tokens whose probability is at least this fraction of the highest one; 0 for all. Default: 0. */
  readonly minP?: number | undefined;
  /** Divides the positive and multiplies the negative logits of tokens in the prompt or the answer; 1 changes nothing. Keskar et al. 2019. Default: 1. */
  readonly repetitionPenalty?: number | undefined;
  /** Subtracted from a token's logit for each occurrence in the answer. Default: 0. */
  readonly frequencyPenalty?: number | undefined;
  /** Subtracted once from a token's logit if the answer contains the token. Default: 0. */
  readonly presencePenalty?: number | undefined;
  /** A 32-bit unsigned integer; the same seed draws the same tokens. Random by default. */
  readonly seed?: number | undefined;
}

/** The numbers among the options: their names as parameters of the API, types and defaults. */
export const SAMPLING = {
  temperature: {"parameter": "temperature", "type": "number 0..", "default": 0.0},
  topK: {"parameter": "top_k", "type": "integer 0..", "default": 0},
  topP: {"parameter": "top_p", "type": "number 0<..1", "default": 1.0},
  minP: {"parameter": "min_p", "type": "number 0..1", "default": 0.0},
  repetitionPenalty: {"parameter": "repetition_penalty", "type": "number 0<..", "default": 1.0},
  frequencyPenalty: {"parameter": "frequency_penalty", "type": "number", "default": 0.0},
  presencePenalty: {"parameter": "presence_penalty", "type": "number", "default": 0.0},
  seed: {"parameter": "seed", "type": "integer 0..4294967295"},
} as const;

/** The order of a row of settings, as devices read it; the draw is the random number. */
export const COLUMNS = ["temperature", "topK", "topP", "minP", "draw", "repetitionPenalty", "frequencyPenalty", "presencePenalty"] as const;
