// Near's signals: how likely the prompt is to the near model, and how sure the model is of the first tokens of its own
// answer. In nats.

import { entropy, mean } from "../router/watch.js";

/** More tokens of a sure model would show no more, and the user waits for them. */
export const SIGNAL_TOKENS = 4;

/** ``alternatives``: the log-probabilities of the most likely tokens. */
export interface FirstToken {
  readonly logprob: number;
  readonly alternatives: readonly number[];
}

/** Each signal by its name, from the first tokens of the answer and the log-probabilities of the prompt's last ones. */
const SIGNALS = {
  prompt_mean_logprob: (_, prompt) => meanOf(prompt),
  first_entropy: (tokens) => meanOf(tokens.map(({ alternatives }) => entropy(alternatives))),
  first_mean_logprob: (tokens) => meanOf(tokens.map(({ logprob }) => logprob)),
} as const satisfies Record<string, (tokens: readonly FirstToken[], prompt: readonly number[]) => number | null>;

export type NearSignal = keyof typeof SIGNALS;
/** Null for unknown ones. */
export type NearSignals = Readonly<Record<NearSignal, number | null>>;
export const NEAR_SIGNALS = Object.keys(SIGNALS) as readonly NearSignal[];

/** The signals of an answer that begins with ``tokens``, of which the first 4 count. */
export function nearSignals(tokens: readonly FirstToken[], prompt: readonly number[]): NearSignals {
  const first = tokens.slice(0, SIGNAL_TOKENS);
  return Object.fromEntries(NEAR_SIGNALS.map((name) => [name, SIGNALS[name](first, prompt)])) as NearSignals;
}

function meanOf(values: readonly number[]): number | null {
  return values.length === 0 ? null : mean(values);
}
