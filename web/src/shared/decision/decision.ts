// A decision: who answers, and why; and the error if nobody can. Every answer carries the decision as its route.

import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";
import { isKept, mediaWords } from "./media.js";
import type { Policy, PrivateRules } from "./policy_schema.js";
import type { Situation } from "./situation.js";

export type Side = "near" | "far";
/** Why a side, or the last remaining side, cannot answer. */
export type Lack =
  | "private"
  | "media"
  | "mode"
  | "near_unavailable"
  | "offline"
  | "circuit_open"
  | "context"
  | "tools"
  | "vision"
  | "video"
  | "sound"
  | "language"
  | "budget";
/** Why a request stays on the device. */
type Kept = "private" | "media";
export type DecisionReason =
  | Lack
  | `pinned_${Exclude<Lack, Kept>}`
  | "pinned"
  | "prefer"
  | "battery"
  | "thermal"
  | "seconds"
  | "quality"
  | "step"
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
 * side is null if no side may or can answer; reason then says what ruled out the last side. A private request, which
 * one with media that the policy keeps is too, is answered by near or not at all.
 */
export interface Decision {
  readonly side: Side | null;
  readonly reason: DecisionReason;
  readonly private: boolean;
  readonly scores: Scores;
}

/** What a side lacks, of which "it" is the side. */
const WHY: Readonly<Record<Exclude<Lack, Kept>, string>> = {
  mode: "the policy's mode forbids it",
  near_unavailable: "its model is not ready",
  offline: "there is no connection to it",
  circuit_open: "it failed several times and gets no requests for a while; try again soon",
  context: "prompt and answer exceed its maximum context length; shorten the prompt, or request fewer tokens",
  tools: "it does not call tools; remove tools",
  vision: "it reads only text; remove images, and files that are not text",
  video: "it reads no videos; remove them, or send pictures of them",
  sound: "it does not read sound; remove the recordings",
  language: "it does not know the language",
  budget: "today's budget for it is spent",
};
/** These conditions may pass, so the same request may succeed later. */
const PASSING: readonly Lack[] = ["near_unavailable", "offline", "circuit_open", "budget"];
/** What a side lacks that cannot read media. */
export const MEDIA_LACKS: readonly Lack[] = ["vision", "video", "sound"];
const MEDIA_ADVICE =
  ', use a near model that reads them, or let them leave: private.media "far", or "describe" for their texts alone';

/**
 * The error of a decision without a side. ``near`` says why near's model cannot answer, if it is not available. A
 * RequestError if the same request would fail again later, otherwise Unavailable.
 */
export function refusal(
  decision: Pick<Decision, "reason" | "private">,
  situation: Pick<Situation, "pin" | "near" | "media">,
  policy: Pick<Policy, "mode"> & { readonly private: Pick<PrivateRules, "media"> },
  near: string | null = null,
): NearfarError {
  const { pin, media } = situation;
  const { mode } = policy;
  const { reason } = decision;
  const lack = reason.replace(/^pinned_/, "") as Lack;
  const isMedia = isKept(policy.private, media);
  // Near may be available later, unless it would not be asked then either.
  const passes = PASSING.includes(lack) || !(situation.near.available || pin === "far" || mode === "far-only");
  const why =
    lack === "private" || lack === "media" ? "" : lack === "near_unavailable" ? (near ?? WHY[lack]) : WHY[lack];
  const subject = isMedia
    ? `the request has ${mediaWords(media)}, which the policy keeps on this device (private.media)`
    : "the request is private";
  const message =
    lack === "private"
      ? "the request is private, so it does not leave this device, but it is pinned to far"
      : lack === "media"
        ? `${subject}, but it is pinned to far; remove the pin, or let it leave: private.media "far"`
        : pin !== null
          ? `the request is pinned to ${pin}, which cannot answer: ${why}`
          : decision.private
            ? `${subject}, so only near may answer, which cannot: ${why}${isMedia && MEDIA_LACKS.includes(lack) ? MEDIA_ADVICE : ""}`
            : mode === "near-only" || mode === "far-only"
              ? `with the policy's mode ${mode} no other side answers, and this one cannot: ${why}`
              : `neither side can answer; far cannot, because ${why}`;
  return new (passes ? Unavailable : RequestError)(message, { code: reason });
}
