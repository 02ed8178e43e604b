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
  return largest === -Infinity ? largest : largest + logSumAbove(logits, largest);
}

/** The log-probability of each token under the softmax of the logits. */
export function logprobsOf(logits: Float32Array): (token: number) => number {
  const largest = largestOf(logits);
  const above = logSumAbove(logits, largest);
  // The largest goes first: beside a large one, the logarithm of the sum would be lost.
  return (token) => (logits[token] ?? NaN) - largest - above;
}

/** log(sum(exp(logits - largest))), from 0 to the logarithm of their number. */
function logSumAbove(logits: Float32Array, largest: number): number {
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - largest);
  return Math.log(sum);
}
