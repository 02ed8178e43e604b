// A decision: who answers, and why; and the error if nobody can. Every answer carries the decision as its route.

import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";

export type Side = "near" | "far";
/** Why a side, or the last remaining side, cannot answer. */
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
/**
 * The expectations for both sides; null for unknown ones. gain is how much more far's answer is worth than near's, in
 * the unit of the policy's threshold.
 */
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
 * side is null if no side may or can answer; reason then says what ruled out the last side. A private request is
 * answered by near or not at all.
 */
export interface Decision {
  readonly side: Side | null;
  readonly reason: DecisionReason;
  readonly private: boolean;
  readonly scores: Scores;
}

const WHY: Readonly<Record<Lack, string>> = {
  private: "it is private, so it does not leave this device, and this device cannot answer it",
  mode: "the policy's mode allows no side",
  near_unavailable: "no model is ready on this device",
  offline: "there is no network",
  circuit_open: "the remaining side failed several times and gets no requests for a while",
  context: "it is longer than the context of the remaining side",
  tools: "the remaining side does not support tools",
  vision: "the remaining side reads only text",
  language: "the remaining side does not know the language",
  budget: "today's budget is spent",
};
/** For these, the same request would fail again later. */
const PERMANENT: readonly Lack[] = ["private", "mode", "context", "tools", "vision", "language"];

/** The error of a decision without a side. ``near`` is the reason why there is no engine; null if there is one. */
export function refusal({ reason }: Decision, near: string | null): NearfarError {
  const lack = reason.replace(/^pinned_/, "") as Lack;
  const pinned = lack === reason ? "" : " and it is pinned to a side";
  const more = near !== null && (lack === "private" || lack === "near_unavailable") ? ` (${near})` : "";
  const message = `Nobody can answer the request: ${WHY[lack]}${pinned}${more}`;
  return PERMANENT.includes(lack) && near === null
    ? new RequestError(message, { code: reason })
    : new Unavailable(message, { code: reason });
}
