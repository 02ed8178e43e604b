// Chooses a side for a request from what is known about the request and both sides, and finds out whether the other
// side may be asked too.

import { decide } from "../shared/decision/decide.js";
import type { Decision } from "../shared/decision/decision.js";
import type { DeviceHints } from "./device_hints.js";
import type { Policy } from "../shared/decision/policy.js";
import type { HybridRequest } from "./request.js";
import type { Side } from "../shared/decision/decision.js";
import type { NearSignals, Situation } from "../shared/decision/situation.js";

export interface Choice {
  readonly decision: Decision;
  readonly situation: Situation;
  /** The other side may be asked if necessary. */
  readonly standby: boolean;
}

/** The records of both sides before a request. */
export interface Known {
  readonly near: Omit<Situation["near"], keyof Pick<DeviceHints, "battery" | "charging" | "thermal">>;
  readonly far: Omit<Situation["far"], "online">;
  readonly hasFar: boolean;
  readonly device: DeviceHints;
  readonly embedding?: readonly number[] | null;
}

const SIGNALS: readonly string[] = [
  "prompt_mean_logprob",
  "first_entropy",
  "first_mean_logprob",
] satisfies (keyof NearSignals)[];

export function situationOf(
  { properties }: Pick<HybridRequest, "properties">,
  { near, far, hasFar, device, embedding = null }: Known,
): Situation {
  const { online, ...hints } = device;
  return {
    ...properties,
    near: { ...near, ...hints },
    far: { ...far, online: hasFar && online },
    near_signals: null,
    embedding,
  };
}

/** ``isPrivate``: whether the request is private. Throws RequestError for an unknown label. */
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

/**
 * Whether near's first tokens could change the decision: the policy's predictor reads them, and only quality or costs
 * decide.
 */
export function wantsSignals({ quality: { predictor } }: Policy, { decision, standby }: Choice): boolean {
  return (
    standby &&
    (decision.reason === "quality" || decision.reason === "cost") &&
    predictor?.features.some((feature) => SIGNALS.includes(feature)) === true
  );
}

/**
 * Whether near must report the log-probabilities of the prompt's tokens too, which its engine must then compute again.
 */
export function wantsPromptLogprobs({ quality: { predictor } }: Policy): boolean {
  return predictor?.features.includes("prompt_mean_logprob") === true;
}

/** Whether near could answer if its model were loaded. */
export function waitsForNear(policy: Policy, { decision, situation }: Choice): boolean {
  if (decision.side !== null || situation.near.available) return false;
  return (
    decide(policy, { ...situation, near: { ...situation.near, available: true } }, decision.private).side === "near"
  );
}
