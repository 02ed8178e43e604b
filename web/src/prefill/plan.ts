// Whether far computes a prompt that near answers: the arithmetic, which is pure.

/** What is known about a prompt and both sides; null if it is not known. */
export interface PrefillFacts {
  /** The tokens that near computes without far, and those that it computes with it. */
  readonly near_tokens: number;
  readonly checked_tokens: number;
  /** The tokens that far computes, and the bytes that it sends. */
  readonly far_tokens: number;
  readonly bytes: number;
  readonly near_tokens_per_second: number | null;
  readonly far_tokens_per_second: number | null;
  readonly bytes_per_second: number | null;
  readonly queue_seconds: number;
  readonly round_trip_seconds: number | null;
  readonly usd: number;
}

export interface PrefillRules {
  /** Near computes fewer tokens itself. */
  readonly min_tokens: number;
  /** The value of a second, as in the policy's costs. */
  readonly usd_per_second: number;
}

/**
 * "few_tokens": near has less than ``min_tokens`` to compute. "unmeasured": the speed of near is not known, or
 * that of far is not and near does not take long. "explores": the speed of far or of the link is not known, and far is
 * asked because near takes long. "sooner", "later": the side is expected to be done
 * first, or last. "price": far would be sooner, and costs more than the time is worth.
 */
export type PrefillReason = "few_tokens" | "unmeasured" | "explores" | "sooner" | "later" | "price";

export interface PrefillDecision {
  readonly side: "near" | "far";
  readonly reason: PrefillReason;
  readonly near_seconds: number | null;
  readonly far_seconds: number | null;
}

/** The side that has computed the last prompt stays unless the other one is sooner by this factor. */
const HYSTERESIS = 1.25;
/** Far is asked to find out how fast it is if near would take longer. */
const EXPLORES_AFTER_SECONDS = 2;

/** ``before``: the side that computed the last such prompt; null for the first one. */
export function decidePrefill(
  facts: PrefillFacts,
  rules: PrefillRules,
  before: "near" | "far" | null,
): PrefillDecision {
  const near = secondsOf(facts.near_tokens, facts.near_tokens_per_second);
  const times = farTimes(facts);
  const known = times.reduce<number>((sum, time) => sum + (time ?? 0), 0);
  const far = times.includes(null) ? null : known;
  const decided = (side: "near" | "far", reason: PrefillReason): PrefillDecision => ({
    side,
    reason,
    near_seconds: near,
    far_seconds: far,
  });
  if (facts.near_tokens < rules.min_tokens) return decided("near", "few_tokens");
  if (near === null) return decided("near", "unmeasured");
  // What is not known may take no time.
  const isSooner = before === "far" ? known < near * HYSTERESIS : known * HYSTERESIS < near;
  if (!isSooner) return decided("near", "later");
  if (facts.usd > 0 && facts.usd > rules.usd_per_second * (near - known)) return decided("near", "price");
  if (far !== null) return decided("far", "sooner");
  return near > EXPLORES_AFTER_SECONDS ? decided("far", "explores") : decided("near", "unmeasured");
}

/** The times in the queue, on the way, of far's device, of the transfer, and of what near computes to check it. */
function farTimes(facts: PrefillFacts): readonly (number | null)[] {
  return [
    facts.queue_seconds,
    facts.round_trip_seconds,
    secondsOf(facts.far_tokens, facts.far_tokens_per_second),
    secondsOf(facts.bytes, facts.bytes_per_second),
    secondsOf(facts.checked_tokens, facts.near_tokens_per_second),
  ];
}

function secondsOf(count: number, perSecond: number | null): number | null {
  return perSecond === null ? null : count / perSecond;
}
