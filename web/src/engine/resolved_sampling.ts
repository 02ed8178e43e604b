// A request's sampling with every default filled in, and the random number of each of its tokens.

import type { SamplingOptions } from "./request.js";

export interface Sampling {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly frequencyPenalty: number;
  readonly presencePenalty: number;
  /** Whether the device must count the sequence's tokens. */
  readonly penalizes: boolean;
  /** (V,): what is added to the logits; null where nothing is. */
  readonly logitBias: Float32Array<ArrayBuffer> | null;
  readonly seed: number;
}

export function resolveSampling(options: SamplingOptions, vocabSize: number): Sampling {
  const {
    temperature = 0,
    topK = 0,
    topP = 1,
    minP = 0,
    repetitionPenalty = 1,
    frequencyPenalty = 0,
    presencePenalty = 0,
  } = options;
  return {
    temperature,
    topK,
    topP,
    minP,
    repetitionPenalty,
    frequencyPenalty,
    presencePenalty,
    penalizes: repetitionPenalty !== 1 || frequencyPenalty !== 0 || presencePenalty !== 0,
    logitBias: denseBias(options.logitBias, vocabSize),
    seed: options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
  };
}

/**
 * The ``index``-th number in [0, 1) of a seed's stream, as `mulberry32` draws them one by one. An answer that starts again, on a new device or after it
 * gave up its pages, so goes on with the same numbers.
 */
export function drawAt(seed: number, index: number): number {
  const state = seedAfter(seed, index + 1) | 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
}

/** The seed whose numbers are those of ``seed`` after its first ``count``. */
export function seedAfter(seed: number, count: number): number {
  return (seed + Math.imul(count, 0x6d2b79f5)) >>> 0;
}

function denseBias(bias: ReadonlyMap<number, number> | undefined, vocabSize: number): Float32Array<ArrayBuffer> | null {
  if (bias === undefined || bias.size === 0) return null;
  const dense = new Float32Array(vocabSize);
  for (const [id, value] of bias) dense[id] = value;
  return dense;
}
