// What sampling means, on the host, for tests: the product samples on the device. tests/conformance/sampling.json fixes the results for every runtime.

import type { SampleSettings } from "../../src/runtime/batch.js";

/** Uniform numbers in [0, 1) from a 32-bit seed; one draw a token. Mulberry32, Tommy Ettinger 2017. */
export function mulberry32(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** What a row's logits are adjusted by, token id by token id; see Batch and `Runner.setTokenCounts`. */
export interface Adjustments {
  readonly inPrompt?: ReadonlySet<number>;
  readonly answerCounts?: ReadonlyMap<number, number>;
  readonly bias?: ReadonlyMap<number, number>;
  readonly allowed?: ReadonlySet<number>;
}

/** Logits after penalties, bias and mask, in this order. A token that is not allowed gets the least logit that is a number. */
export function adjustLogits(logits: readonly number[], settings: SampleSettings, adjustments: Adjustments): readonly number[] {
  const { repetitionPenalty = 1, frequencyPenalty = 0, presencePenalty = 0 } = settings;
  const { inPrompt, answerCounts, bias, allowed } = adjustments;
  return logits.map((logit, id) => {
    const times = answerCounts?.get(id) ?? 0;
    const seen = times > 0 || inPrompt?.has(id) === true;
    const repeated = !seen ? logit : logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
    const penalized = repeated - times * frequencyPenalty - (times > 0 ? presencePenalty : 0);
    return allowed?.has(id) === false ? -Number.MAX_VALUE : penalized + (bias?.get(id) ?? 0);
  });
}

/**
 * The next token, from weights exp((logit - max) / temperature): the first in vocabulary order at which the running sum of the kept tokens'
 * weights exceeds ``draw`` times their sum. Kept are the topK largest logits, of those the fewest largest whose weights reach topP of their
 * sum, of those the ones of minP times the largest weight; equals of the last kept are kept as well. Temperature 0 takes the largest.
 */
export function sampleToken(logits: readonly number[], settings: SampleSettings): number {
  const { temperature = 0, topK = 0, topP = 1, minP = 0, draw = 0 } = settings;
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  if (temperature === 0) return logits.indexOf(largest);
  const weights = logits.map((logit) => Math.exp((logit - largest) / temperature));
  const sorted = [...logits].sort((a, b) => b - a);
  let least = topK > 0 && topK < sorted.length ? (sorted[topK - 1] ?? largest) : -Infinity;
  if (topP < 1) {
    const kept = sorted.filter((logit) => logit >= least).map((logit) => [logit, Math.exp((logit - largest) / temperature)] as const);
    const goal = topP * kept.reduce((sum, [, weight]) => sum + weight, 0);
    let sum = 0;
    for (const [logit, weight] of kept) {
      sum += weight;
      least = logit;
      if (sum >= goal) break;
    }
  }
  const kept = weights.map((weight, id) => ((logits[id] ?? NaN) >= least && weight >= minP ? weight : 0));
  const goal = draw * kept.reduce((sum, weight) => sum + weight, 0);
  let sum = 0;
  return kept.findIndex((weight) => (sum += weight) > goal);
}
