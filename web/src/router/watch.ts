// The watch: whether a near answer goes astray, token by token.
//
// Tokens flow in with what the model thought of them; the reason to escalate flows out, where there is one. server_fallback/router/watch.py is the
// same, and tests/conformance/router_traces.json holds both to the same reasons.

import type { EscalationReason } from "./events.js";

/** Under the policy's names. Windows are the last window_tokens tokens; logprobs and entropies (nats) are means over them. */
export interface WatchRules {
  readonly window_tokens: number;
  readonly min_mean_logprob: number | null;
  readonly max_mean_entropy: number | null;
  /** The last tokens * times tokens are one piece of at most `tokens` tokens, over and over. */
  readonly repetition: { readonly tokens: number; readonly times: number } | null;
  readonly failing_schema: boolean;
}

/** A token of the answer. null: not known, it is in no window. */
export interface WatchedToken {
  readonly text: string;
  readonly logprob: number | null;
  /** The logprobs of the most likely tokens. */
  readonly alternatives: readonly number[] | null;
}

export class Watch {
  constructor(readonly rules: WatchRules) {}

  add(token: WatchedToken): EscalationReason | null {
    throw new Error(token.text);
  }

  /** The answer no longer fits its schema. */
  schemaFailed(): EscalationReason | null {
    throw new Error();
  }
}
