// The decision: who answers a request, and why, from a policy and a situation. Pure and total: every situation has a
// result.
//
// Hard rules come first (private, the mode, what a side lacks, a pin), then preference, then the device, the time
// limits, the costs and the predictor. Python evaluates the same functions (server_fallback/router/decision/decide.py).

import { RequestError } from "../../errors.js";
import { farTimes, farUsd, isSpent, nearTimes } from "./costs.js";
import type { Decision, DecisionReason, Lack, Scores, Side } from "./decision.js";
import { MEDIA_LACKS } from "./decision.js";
import { lastUserText } from "./features.js";
import type { OpaqueMedia } from "./media.js";
import { isKept, needs, standIns } from "./media.js";
import type { Costs, Policy } from "./policy_schema.js";
import { predictRights, readsSignals } from "./predictor.js";
import { PrivateCheck } from "./privacy.js";
import type { FarState, NearState, Situation, Thermal } from "./situation.js";

/** A decision, and what else follows from the same rules. */
export interface Choice {
  readonly decision: Decision;
  /** The other side may be asked if necessary: no hard rule forbids it. */
  readonly standby: boolean;
  /** Near's first tokens could change the decision: the predictor reads them, and only quality or costs decide. */
  readonly wants_signals: boolean;
  /** Near may guess tokens for far's answer: it could answer itself, and its device need not be spared. */
  readonly may_guess: boolean;
  /** If there are any, nobody may answer yet: near must turn these into texts, with which `chooseDescribed` decides again. */
  readonly describes: readonly OpaqueMedia[];
}

export interface DescribedChoice extends Choice {
  /** Near reads the media themselves, so the answer stays near; otherwise the texts stand in their place. */
  readonly reads_media: boolean;
}

interface Answering {
  readonly side: Side | null;
  readonly reason: DecisionReason;
}

/** The reasons of a side that was chosen by its gain. */
const GAINED: readonly DecisionReason[] = ["quality", "cost", "step"];
const THERMALS: readonly Thermal[] = ["nominal", "fair", "serious", "critical"];

/** The policy for embeddings and rankings: that of chats without its predictor, which is fitted to answers of chats. */
export function encodingPolicy(policy: Policy): Policy {
  return { ...policy, quality: { ...policy.quality, predictor: null } };
}

/** Whether the request is private is determined here, and the decision is that of `choose`, which may throw. */
export function decide(policy: Policy, situation: Situation): Decision {
  return choose(policy, situation, PrivateCheck.of(policy.private).isPrivate(situation)).decision;
}

/**
 * ``isPrivate``: whether the request has a private label or text. Throws RequestError with the code "unknown_label" for a label that the
 * policy does not have, and with "bad_situation" for a vector that the predictor's model cannot have made.
 */
export function choose(policy: Policy, situation: Situation, isPrivate: boolean): Choice {
  checkLabels(policy, situation);
  const { pin, near_signals: signals, media } = situation;
  const kept = isPrivate ? "private" : isKept(policy.private, media) ? "media" : null;
  const texts = standIns(policy.private, media, situation.near.describes, situation.far.sound);
  const hasTexts = texts.length > 0;
  const lacks = { near: nearLack(policy, situation), far: kept ?? farLack(policy, situation) };
  // Of these media, far needs to read only the texts, which have other tokens.
  if (hasTexts && kept !== "private") {
    const others = media.filter((each) => !texts.some((text) => text === each));
    lacks.far = farLack(policy, { ...situation, media: others, far: { ...situation.far, prompt_tokens: null } });
  }
  const scores = score(policy, situation);
  const hint = hinted(policy, situation.near, scores.near_first_token_seconds);
  const { side, reason } =
    hard(pin, lacks.near, lacks.far) ??
    preferred(policy) ??
    hint ??
    inTime(policy.costs, scores) ??
    byGain(policy, situation, scores);
  const nearCannotRead = lacks.near !== null && MEDIA_LACKS.includes(lacks.near);
  const describes = hasTexts && (side === "far" || (side === null && pin !== "far" && nearCannotRead));
  if (describes) {
    const decision = { side: null, reason: "media", private: true, scores } as const;
    return { decision, standby: false, wants_signals: false, may_guess: false, describes: texts };
  }
  // Far cannot read the request as near does.
  const isShared = kept === null && !hasTexts;
  return {
    decision: { side, reason, private: kept !== null, scores },
    standby: side !== null && pin === null && isShared && lacks[side === "near" ? "far" : "near"] === null,
    wants_signals: isShared && GAINED.includes(reason) && signals === null && readsSignals(policy.quality),
    may_guess: lacks.near === null && hint === null,
    describes: [],
  };
}

/**
 * The choice with the descriptions: ``described`` is the situation with them in place of the media of ``original``, and
 * ``isPrivate`` is true of a private label or text, also of a description. Throws as `choose`.
 */
export function chooseDescribed(
  policy: Policy,
  original: Situation,
  described: Situation,
  isPrivate: boolean,
): DescribedChoice {
  const choice = choose(policy, described, isPrivate);
  const readsMedia = choice.decision.side === "near" && nearLack(policy, original) === null;
  if (!readsMedia) return { ...choice, reads_media: false };
  const decision = { ...choice.decision, private: true };
  return { ...choice, decision, standby: false, wants_signals: false, reads_media: true };
}

/**
 * The expectations for both sides, whether or not they may answer. Without a predictor both sides are assumed to be
 * right.
 */
export function score(policy: Policy, situation: Situation): Scores {
  const near = nearTimes(situation);
  const far = farTimes(situation);
  const usd = farUsd(policy, situation);
  const { predictor } = policy.quality;
  const rights =
    predictor === null
      ? null
      : predictRights(predictor, lastUserText(situation.messages), situation.near_signals, situation.embedding);
  let gain: number | null = null;
  if (policy.mode === "auto") {
    const waited = near.total === null || far.total === null ? 0 : far.total - near.total;
    const more = (usd ?? 0) + policy.costs.usd_per_second * waited;
    gain = worth(rights === null ? 0 : rights.far - rights.near, situation) - more;
  }
  return {
    near_right: rights?.near ?? null,
    far_right: rights?.far ?? null,
    gain,
    near_first_token_seconds: near.first,
    near_total_seconds: near.total,
    far_first_token_seconds: far.first,
    far_total_seconds: far.total,
    far_usd: usd,
  };
}

/** How much more right far is, with what is known about a step of an agent. */
function worth(difference: number, { stake }: Situation): number {
  return stake ? stake.weight * Math.min(1, difference + stake.doubt) : difference;
}

function checkLabels(policy: Policy, situation: Situation): void {
  const known = new Set([...policy.labels, ...policy.private.labels]);
  const labelsByPath = [
    ["labels", situation.labels] as const,
    ...situation.messages.map(({ labels }, index) => [`messages[${index}].labels`, labels] as const),
  ];
  for (const [path, labels] of labelsByPath) {
    for (const label of labels) {
      if (known.has(label)) continue;
      const has = [...known].sort().join(", ") || "none";
      throw new RequestError(`${path}: the policy has no label '${label}'; it has ${has}`, {
        code: "unknown_label",
        param: path,
      });
    }
  }
}

/** The first thing that near lacks; null if it may answer. */
function nearLack(policy: Policy, situation: Situation): Lack | null {
  if (policy.mode === "far-only") return "mode";
  if (!situation.near.available) return "near_unavailable";
  return lackOf(situation.near, situation);
}

function farLack({ mode, budget }: Policy, situation: Situation): Lack | null {
  if (mode === "near-only") return "mode";
  const { far } = situation;
  if (!far.online) return "offline";
  const lack = lackOf(far, situation);
  if (lack !== null) return lack;
  return isSpent(budget, { requests: far.requests_today, usd: far.spent_usd_today }) ? "budget" : null;
}

function lackOf(side: NearState | FarState, { max_tokens, tools, media, language }: Situation): Lack | null {
  const { vision, video, sound } = needs(media);
  if (side.circuit === "open") return "circuit_open";
  if (side.context !== null && side.prompt_tokens !== null && side.prompt_tokens + (max_tokens ?? 1) > side.context)
    return "context";
  if (tools && !side.tools) return "tools";
  if (vision && !side.vision) return "vision";
  if (video && !side.video) return "video";
  if (sound && !side.sound) return "sound";
  if (language !== null && side.languages?.includes(language) === false) return "language";
  return null;
}

/** Null if both sides may answer and the request is not pinned. */
function hard(pin: Side | null, near: Lack | null, far: Lack | null): Answering | null {
  const pinned = pin === null ? null : pin === "near" ? near : far;
  if (pinned !== null)
    return { side: null, reason: pinned === "private" || pinned === "media" ? pinned : `pinned_${pinned}` };
  if (near !== null && far !== null) {
    // Far is checked last, unless it was ruled out from the start.
    return { side: null, reason: far === "private" || far === "media" || far === "mode" ? near : far };
  }
  if (near !== null) return { side: "far", reason: near };
  if (far !== null) return { side: "near", reason: far };
  return pin === null ? null : { side: pin, reason: "pinned" };
}

function preferred({ mode }: Policy): Answering | null {
  if (mode === "prefer-near") return { side: "near", reason: "prefer" };
  return mode === "prefer-far" ? { side: "far", reason: "prefer" } : null;
}

/** Whether the device should be spared, or is too slow. ``firstToken``: in seconds; an unknown time is not too long. */
function hinted(
  { device }: Policy,
  { battery, charging, thermal }: NearState,
  firstToken: number | null,
): Answering | null {
  if (device.min_battery !== null && battery !== null && battery < device.min_battery && charging !== true)
    return { side: "far", reason: "battery" };
  if (
    device.max_thermal !== null &&
    thermal !== null &&
    THERMALS.indexOf(thermal) > THERMALS.indexOf(device.max_thermal)
  ) {
    return { side: "far", reason: "thermal" };
  }
  if (device.max_first_token_seconds !== null && firstToken !== null && firstToken > device.max_first_token_seconds)
    return { side: "far", reason: "seconds" };
  return null;
}

function inTime(costs: Costs, scores: Scores): Answering | null {
  const near = isLate(costs, scores.near_first_token_seconds, scores.near_total_seconds);
  const far = isLate(costs, scores.far_first_token_seconds, scores.far_total_seconds);
  return near === far ? null : { side: near ? "far" : "near", reason: "seconds" };
}

/** Unknown times are not late. */
function isLate(
  { max_first_token_seconds: mostFirst, max_total_seconds: mostTotal }: Costs,
  first: number | null,
  total: number | null,
): boolean {
  return (
    (first !== null && mostFirst !== null && first > mostFirst) ||
    (total !== null && mostTotal !== null && total > mostTotal)
  );
}

function byGain(
  { quality }: Policy,
  situation: Situation,
  { gain, near_right: near, far_right: far }: Scores,
): Answering {
  const sideOf = (value: number | null): Side => (value !== null && value > quality.threshold ? "far" : "near");
  const plain = { side: sideOf(gain), reason: quality.predictor === null ? "cost" : "quality" } as const;
  if (!situation.stake || gain === null) return plain;
  const difference = near === null || far === null ? 0 : far - near;
  const without = gain - worth(difference, situation) + difference;
  return sideOf(without) === plain.side ? plain : { side: plain.side, reason: "step" };
}
