// The sampling options of a request with all defaults, and the random number for each of its tokens.

import type { SettingsRow } from "../runtime/batch.js";
import { settingsOf } from "../runtime/batch.js";
import type { SamplingOptions } from "../shared/sampling.js";

export interface Sampling extends SettingsRow {
  /** Whether the device must count the sequence's tokens. */
  readonly penalizes: boolean;
  /** (V,): added to the logits; null if nothing is added. */
  readonly logitBias: Float32Array<ArrayBuffer> | null;
  readonly seed: number;
}

export function resolveSampling(options: SamplingOptions, vocabSize: number): Sampling {
  return {
    ...settingsOf(options),
    penalizes: penalizes(options),
    logitBias: denseBias(options.logitBias, vocabSize),
    seed: options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
  };
}

/** Whether earlier tokens change the logits. */
export function penalizes(options: SamplingOptions): boolean {
  const { repetitionPenalty = 1, frequencyPenalty = 0, presencePenalty = 0 } = options;
  return repetitionPenalty !== 1 || frequencyPenalty !== 0 || presencePenalty !== 0;
}

/**
 * The number at ``index``, in [0, 1), of a seed's stream, which `mulberry32` draws one by one. An answer that starts
 * again, on a new device or after it lost its pages, therefore continues with the same numbers.
 */
export function drawAt(seed: number, index: number): number {
  const state = seedAfter(seed, index + 1) | 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
}

/** The seed whose stream continues the stream of ``seed`` after ``count`` numbers. */
export function seedAfter(seed: number, count: number): number {
  return (seed + Math.imul(count, 0x6d2b79f5)) >>> 0;
}

function denseBias(bias: ReadonlyMap<number, number> | undefined, vocabSize: number): Float32Array<ArrayBuffer> | null {
  if (bias === undefined || bias.size === 0) return null;
  const dense = new Float32Array(vocabSize);
  for (const [id, value] of bias) dense[id] = value;
  return dense;
}
