// The watch: whether a near answer goes astray, token by token.
//
// Tokens flow in with what the model thought of them; the reason to escalate flows out, where there is one, and sooner than that whether there are
// doubts. server_fallback/router/answer/watch.py is the same, and tests/conformance/router_traces.json holds both to the same reasons.

import type { EscalationReason } from "./events.js";
import type { Escalation, Repetition } from "../decision/policy_schema.js";

/** By the policy's rules. Windows are the last window_tokens tokens; logprobs and entropies (nats) are means over them. */
export type WatchRules = Omit<Escalation, "then" | "warm">;

/** A token of the answer. null: not known, it is in no window. */
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
  #doubts = false;

  constructor(rules: WatchRules) {
    this.#rules = rules;
  }

  /** Whether half a window, or more, ever was half as bad as what is escalated. */
  get doubts(): boolean {
    return this.#doubts;
  }

  /** The reason to escalate after this token, if there is one. */
  add({ text, logprob, alternatives }: WatchedToken): EscalationReason | null {
    const { window_tokens, min_mean_logprob, max_mean_entropy, repetition } = this.#rules;
    if (logprob !== null) keep(this.#logprobs, logprob, window_tokens);
    if (alternatives !== null) keep(this.#entropies, entropy(alternatives), window_tokens);
    if (repetition !== null) keep(this.#texts, text, repetition.tokens * repetition.times);
    const half = Math.ceil(window_tokens / 2);
    this.#doubts ||=
      min_mean_logprob !== null && this.#logprobs.length >= half && mean(this.#logprobs) < min_mean_logprob / 2;
    this.#doubts ||=
      max_mean_entropy !== null && this.#entropies.length >= half && mean(this.#entropies) > max_mean_entropy / 2;
    // A window that is not full yet says nothing.
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

  /** The answer fits its schema no longer. */
  schemaFailed(): EscalationReason | null {
    return this.#rules.failing_schema ? "escalated_schema" : null;
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

/** Of the most likely tokens, in nats. What they leave of the probability counts as one more token. */
export function entropy(logprobs: readonly number[]): number {
  let total = 0;
  let rest = 1;
  for (const logprob of logprobs) {
    const probability = Math.exp(logprob);
    // 0 log 0 is 0, also where the logprob is -Infinity.
    if (probability > 0) total -= probability * logprob;
    rest -= probability;
  }
  return rest > 0 ? total - rest * Math.log(rest) : total;
}

function mean(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / values.length;
}

/** Add a value to a window, which drops its oldest. */
function keep<T>(window: T[], value: T, length: number): void {
  window.push(value);
  if (window.length > length) window.shift();
}
