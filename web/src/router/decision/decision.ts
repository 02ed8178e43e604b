// A decision: who answers, and why; and the error if nobody can. Drivers put the decision into every answer as its route.

import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";

export type Side = "near" | "far";
/** What takes a side out of the choice, or takes all of them out. */
export type Lack =
  | "private"
  | "mode"
  | "near_unavailable"
  | "offline"
  | "circuit_open"
  | "context"
  | "tools"
  | "vision"
  | "language"
  | "budget";
export type DecisionReason =
  | Lack
  | `pinned_${Exclude<Lack, "private">}`
  | "pinned"
  | "prefer"
  | "battery"
  | "thermal"
  | "seconds"
  | "quality"
  | "cost";
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

const WHY: Readonly<Record<Lack, string>> = {
  private: "it is private, so it does not leave this device, and this device cannot answer it",
  mode: "the policy's mode leaves no side",
  near_unavailable: "no model is ready on this device",
  offline: "there is no network",
  circuit_open: "the side that is left failed several times and is left alone for a while",
  context: "it is longer than the context of the side that is left",
  tools: "the side that is left knows no tools",
  vision: "the side that is left reads texts only",
  language: "the side that is left does not know the language",
  budget: "the budget of today is spent",
};
/** For these, the same request fails again later. */
const PERMANENT: readonly Lack[] = ["private", "mode", "context", "tools", "vision", "language"];

/** The error of a decision without a side. ``near`` says in words why there is no engine, null if there is one. */
export function refusal({ reason }: Decision, near: string | null): NearfarError {
  const lack = reason.replace(/^pinned_/, "") as Lack;
  const pinned = lack === reason ? "" : " and it is pinned to a side";
  const more = near !== null && (lack === "private" || lack === "near_unavailable") ? ` (${near})` : "";
  const message = `Nobody can answer the request: ${WHY[lack]}${pinned}${more}`;
  return PERMANENT.includes(lack) && near === null
    ? new RequestError(message, { code: reason })
    : new Unavailable(message, { code: reason });
}
