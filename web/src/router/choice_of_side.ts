// The choice of a side for a request: the request's facts and what is known of both sides flow in; the decision, and whether the other side may be asked
// too, flow out.

import { decide } from "./decision/decide.js";
import type { Decision } from "./decision/decision.js";
import type { DeviceHints } from "./decision/device_hints.js";
import type { Policy } from "./decision/policy.js";
import type { HybridRequest } from "./request.js";
import type { Side } from "./decision/decision.js";
import type { NearSignals, Situation } from "./decision/situation.js";

export interface Choice {
  readonly decision: Decision;
  readonly situation: Situation;
  /** The other side may be asked, should it come to that. */
  readonly standby: boolean;
}

/** What is known of both sides before a request. */
export interface Known {
  readonly near: Omit<Situation["near"], keyof Pick<DeviceHints, "battery" | "charging" | "thermal">>;
  readonly far: Omit<Situation["far"], "online">;
  readonly farGiven: boolean;
  readonly device: DeviceHints;
}

const SIGNALS: readonly string[] = [
  "prompt_mean_logprob",
  "first_entropy",
  "first_mean_logprob",
] satisfies (keyof NearSignals)[];

export function situationOf({ facts }: HybridRequest, { near, far, farGiven, device }: Known): Situation {
  const { online, ...hints } = device;
  return { ...facts, near: { ...near, ...hints }, far: { ...far, online: farGiven && online }, near_signals: null };
}

/** ``isPrivate``: whether the request is. Throws RequestError for an unknown label. */
export function choose(policy: Policy, situation: Situation, isPrivate: boolean): Choice {
  const decision = decide(policy, situation, isPrivate);
  const { side } = decision;
  const standby =
    side !== null &&
    situation.pin === null &&
    mayAnswer(policy, situation, side === "near" ? "far" : "near", isPrivate);
  return { decision, situation, standby };
}

/** Whether no hard rule forbids the side. */
function mayAnswer(policy: Policy, situation: Situation, side: Side, isPrivate: boolean): boolean {
  return decide(policy, { ...situation, pin: side }, isPrivate).side === side;
}

/** Whether near's first tokens could change the decision: the policy's predictor reads them, and nothing but quality and costs decides. */
export function wantsSignals({ quality: { predictor } }: Policy, { decision, standby }: Choice): boolean {
  return (
    standby &&
    (decision.reason === "quality" || decision.reason === "cost") &&
    predictor?.features.some((feature) => SIGNALS.includes(feature)) === true
  );
}

/** Whether near is asked for the log-probabilities of the prompt's tokens too, which its engine must then compute anew. */
export function wantsPromptLogprobs({ quality: { predictor } }: Policy): boolean {
  return predictor?.features.includes("prompt_mean_logprob") === true;
}

/** Whether near could answer if its model were there. */
export function waitsForNear(policy: Policy, { decision, situation }: Choice): boolean {
  if (decision.side !== null || situation.near.available) return false;
  return (
    decide(policy, { ...situation, near: { ...situation.near, available: true } }, decision.private).side === "near"
  );
}
