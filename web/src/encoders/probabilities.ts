// What a classifier's activation makes of its scores.

import type { ClassifierSpec } from "../runtime/manifest.js";

/** ``scores`` (L,) -> (L,). compiler/runtime/encoding.py defines it. */
export function probabilities(scores: Float32Array, { activation }: Pick<ClassifierSpec, "activation">): Float32Array {
  switch (activation) {
    case "none":
      return scores;
    case "sigmoid":
      return scores.map((score) => {
        // Neither exponential overflows.
        const falling = Math.exp(-Math.abs(score));
        return (score >= 0 ? 1 : falling) / (1 + falling);
      });
    case "softmax": {
      const largest = scores.reduce((most, score) => Math.max(most, score), -Infinity);
      const weights = scores.map((score) => Math.exp(score - largest));
      const sum = weights.reduce((total, weight) => total + weight, 0);
      return weights.map((weight) => weight / sum);
    }
    default:
      return activation satisfies never;
  }
}
