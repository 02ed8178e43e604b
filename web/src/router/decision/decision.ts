// A decision: who answers, and why. Drivers put it into every answer as its route.

export type Side = "near" | "far";
/** What takes a side out of the choice, or takes all of them out. */
export type Lack = "private" | "mode" | "near_unavailable" | "offline" | "circuit_open" | "context" | "tools" | "vision" | "language" | "budget";
export type DecisionReason = Lack | `pinned_${Exclude<Lack, "private">}` | "pinned" | "prefer" | "battery" | "thermal" | "seconds" | "quality" | "cost";
/** What was expected of both sides; null where it is not known. gain is what far is worth above near, in the unit of the policy's threshold. */
export interface Scores {
  readonly near_right: number | null;
  readonly far_right: number | null;
  readonly gain: number | null;
  readonly near_first_token_seconds: number | null;
  readonly near_total_seconds: number | null;
  readonly far_first_token_seconds: number | null;
  readonly far_total_seconds: number | null;
  readonly far_usd: number | null;
}

/**
 * side is null where nobody may or can answer; reason then says what stopped the last side. A private answer is near's or nobody's, to its end.
 */
export interface Decision {
  readonly side: Side | null;
  readonly reason: DecisionReason;
  readonly private: boolean;
  readonly scores: Scores;
}
