// Log-probabilities of a prompt's last tokens: the rows that must be sampled for them, and the values that such a row
// gives.

import type { StepResult } from "../runtime/results.js";

/** How many tokens at the end of a prompt can get a log-probability. */
export const MAX_PROMPT_LOGPROBS = 32;
/** The lowest log-probability of a very unlikely token: rounding may leave it a probability of 0. */
const MIN_LOGPROB = -30;

/**
 * How many rows of a prompt are still to be sampled: ``pending`` ones are not scheduled, ``scheduled`` ones are not
 * read back.
 *
 * The row at position p gives the log-probability of the token at p + 1, so these rows are the last ones before the row
 * that samples the first token of the answer. They never come from a cache, which holds keys and values but no logits.
 */
export class PromptLogprobRows {
  scheduled = 0;

  constructor(public pending: number) {}

  schedule(rows: number): void {
    this.pending -= rows;
    this.scheduled += rows;
  }

  commit(rows: number): void {
    this.scheduled -= rows;
  }

  /** The scheduled rows will never be read back; schedule them again. */
  restart(): void {
    this.schedule(-this.scheduled);
  }
}

/**
 * The log-probability of ``tokenId`` after the sampled row ``sample``, in nats. It is exact for the 20 most likely
 * tokens, which the row lists. Any other token gets an equal share of the probability that remains, and at least
 * -30.
 */
export function promptLogprob(
  { tokenIds, alternatives }: Pick<StepResult, "tokenIds" | "alternatives">,
  sample: number,
  tokenId: number,
  vocabSize: number,
): number {
  if (alternatives === null)
    throw new Error("a prompt's log-probabilities are read from alternatives, and the step has none");
  const columns = alternatives.ids.length / tokenIds.length;
  const [start, end] = [sample * columns, (sample + 1) * columns];
  const logprobs = alternatives.logprobs.subarray(start, end);
  const rank = alternatives.ids.subarray(start, end).indexOf(tokenId);
  const remaining = Math.max(0, 1 - sumOfExp(logprobs));
  return rank >= 0
    ? (logprobs[rank] ?? MIN_LOGPROB)
    : Math.max(MIN_LOGPROB, Math.log(remaining / (vocabSize - columns)));
}

function sumOfExp(logprobs: Float32Array): number {
  return logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0);
}
