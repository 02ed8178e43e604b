// The watch: detects, token by token, a near answer that goes wrong.
//
// It reads tokens with the model's log-probabilities and returns the reason to escalate, if any; before that, it
// reports doubts. tests/conformance/router_traces.json requires its reasons.

import type { EscalationReason } from "./events.js";
import type { Escalation, Repetition } from "../decision/policy_schema.js";

/**
 * The escalation rules of the policy. A window is the last window_tokens tokens; logprobs and entropies (in nats) are
 * means over a window.
 */
export type WatchRules = Omit<Escalation, "then" | "warm" | "failing_schema"> & {
  /** The limit of the answer's tokens; null for none. After the last one, far could write nothing better. */
  readonly max_tokens: number | null;
};

/** A token of the answer. null: not known, so it is in no window. */
export interface WatchedToken {
  readonly text: string;
  readonly logprob: number | null;
  /** The logprobs of the most likely tokens. */
  readonly alternatives: readonly number[] | null;
}

export class Watch {
  readonly #rules: WatchRules;
  readonly #logprobs: number[] = [];
  readonly #entropies: number[] = [];
  readonly #texts: string[] = [];
  #tokens = 0;
  #doubts = false;

  constructor(rules: WatchRules) {
    this.#rules = rules;
  }

  /**
   * Whether a token has made an escalation likely, which is half of the threshold over at least half a window. Once
   * true, it stays true.
   */
  get doubts(): boolean {
    return this.#doubts;
  }

  /** The reason to escalate after this token, if there is one. */
  add({ text, logprob, alternatives }: WatchedToken): EscalationReason | null {
    const { window_tokens, min_mean_logprob, max_mean_entropy, repetition, max_tokens } = this.#rules;
    this.#tokens++;
    if (max_tokens !== null && this.#tokens >= max_tokens) return null;
    if (logprob !== null) keep(this.#logprobs, logprob, window_tokens);
    if (alternatives !== null) keep(this.#entropies, entropy(alternatives), window_tokens);
    if (repetition !== null) keep(this.#texts, text, repetition.tokens * repetition.times);
    const half = Math.ceil(window_tokens / 2);
    this.#doubts ||=
      min_mean_logprob !== null && this.#logprobs.length >= half && mean(this.#logprobs) < min_mean_logprob / 2;
    this.#doubts ||=
      max_mean_entropy !== null && this.#entropies.length >= half && mean(this.#entropies) > max_mean_entropy / 2;
    // A window that is not full yet proves nothing.
    if (min_mean_logprob !== null && this.#logprobs.length === window_tokens && mean(this.#logprobs) < min_mean_logprob)
      return "escalated_logprob";
    if (
      max_mean_entropy !== null &&
      this.#entropies.length === window_tokens &&
      mean(this.#entropies) > max_mean_entropy
    )
      return "escalated_entropy";
    return repetition !== null && this.#repeats(repetition) ? "escalated_repetition" : null;
  }

  #repeats({ tokens, times }: Repetition): boolean {
    const texts = this.#texts;
    if (texts.length < tokens * times || texts.every((text) => text === "")) return false;
    for (let period = 1; period <= tokens; period++) {
      if (texts.every((text, index) => index < period || text === texts[index - period])) return true;
    }
    return false;
  }
}

/** The entropy in nats, from the most likely tokens. The remaining probability counts as one more token. */
export function entropy(logprobs: readonly number[]): number {
  let total = 0;
  let rest = 1;
  for (const logprob of logprobs) {
    const probability = Math.exp(logprob);
    // 0 log 0 is 0, also if the logprob is -Infinity.
    if (probability > 0) total -= probability * logprob;
    rest -= probability;
  }
  return rest > 0 ? total - rest * Math.log(rest) : total;
}

export function mean(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / values.length;
}

/** Add a value to a window, which drops its oldest. */
function keep<T>(window: T[], value: T, length: number): void {
  window.push(value);
  if (window.length > length) window.shift();
}
