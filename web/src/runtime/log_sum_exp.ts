// The largest logit, and the logarithm by which logits become log-probabilities.

/** Minus infinity for no logits. NaN if one is not a number. */
export function largestOf(logits: Float32Array): number {
  let largest = -Infinity;
  for (const logit of logits) largest = Math.max(largest, logit);
  return largest;
}

/** log(sum(exp(logits))), minus infinity if all logits are. */
export function logSumExp(logits: Float32Array): number {
  const largest = largestOf(logits);
  if (largest === -Infinity) return largest;
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - largest);
  return largest + Math.log(sum);
}
