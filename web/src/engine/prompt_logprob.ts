// The log-probability of a prompt's token, from what a sampled row tells: its likeliest tokens. A row of a step's result flows in, a number flows out.

import type { StepResult } from "../runtime/runner.js";

/** The most tokens of a prompt whose log-probabilities are told. */
export const MOST_PROMPT_LOGPROBS = 32;
/** That of a token that can hardly come: rounding may leave nothing, or less, to share. */
const LEAST = -30;

/**
 * The log-probability of ``tokenId`` after the ``row``-th sampled row, in nats. A token that is none of the 20 likeliest counts as one of V - 20 equals,
 * which share what these leave, and at least as -30.
 */
export function promptLogprob({ tokenIds, alternatives }: Pick<StepResult, "tokenIds" | "alternatives">, row: number, tokenId: number, vocabSize: number): number {
  if (alternatives === null) throw new Error("a prompt's log-probabilities are read from alternatives, and the step has none");
  const columns = alternatives.ids.length / tokenIds.length;
  const [start, end] = [row * columns, (row + 1) * columns];
  const logprobs = alternatives.logprobs.subarray(start, end);
  const rank = alternatives.ids.subarray(start, end).indexOf(tokenId);
  const left = Math.max(0, 1 - sumOfExp(logprobs));
  return rank >= 0 ? (logprobs[rank] ?? LEAST) : Math.max(LEAST, Math.log(left / (vocabSize - columns)));
}

function sumOfExp(logprobs: Float32Array): number {
  return logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0);
}
