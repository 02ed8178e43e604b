// A decision: who answers, and why; and the error if nobody can. Every answer carries the decision as its route.

import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";
import type { Policy } from "./policy_schema.js";
import type { Situation } from "./situation.js";

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

/** What a side lacks, of which "it" is the side. */
const WHY: Readonly<Record<Exclude<Lack, "private">, string>> = {
  mode: "the policy's mode forbids it",
  near_unavailable: "its model is not ready",
  offline: "there is no connection to it",
  circuit_open: "it failed several times and gets no requests for a while; try again soon",
  context: "prompt and answer exceed its maximum context length; shorten the prompt, or request fewer tokens",
  tools: "it does not call tools; remove tools",
  vision: "it reads only text; remove the images",
  language: "it does not know the language",
  budget: "today's budget for it is spent",
};
/** These conditions may pass, so the same request may succeed later. */
const PASSING: readonly Lack[] = ["near_unavailable", "offline", "circuit_open", "budget"];

/**
 * The error of a decision without a side. ``near`` says why near's model cannot answer, if it is not available. A
 * RequestError if the same request would fail again later, otherwise Unavailable.
 */
export function refusal(
  decision: Decision,
  situation: Pick<Situation, "pin" | "near">,
  mode: Policy["mode"],
  near: string | null = null,
): NearfarError {
  const { pin } = situation;
  const { reason } = decision;
  const lack = reason.replace(/^pinned_/, "") as Lack;
  // Near may be available later, unless it would not be asked then either.
  const passes = PASSING.includes(lack) || !(situation.near.available || pin === "far" || mode === "far-only");
  const why = lack === "private" ? "" : lack === "near_unavailable" ? (near ?? WHY[lack]) : WHY[lack];
  const message =
    lack === "private"
      ? "the request is private, so it does not leave this device, but it is pinned to far"
      : pin !== null
        ? `the request is pinned to ${pin}, which cannot answer: ${why}`
        : decision.private
          ? `the request is private, so only near may answer, which cannot: ${why}`
          : mode === "near-only" || mode === "far-only"
            ? `with the policy's mode ${mode} no other side answers, and this one cannot: ${why}`
            : `neither side can answer; far cannot, because ${why}`;
  return new (passes ? Unavailable : RequestError)(message, { code: reason });
}
