// Speed: how fast a side has been lately. Pure.
//
// It averages the time per token and not the rate, because a mean of rates hides the answers that stalled, and these
// matter most.

import type { Usage } from "../router/usage.js";

/** A part of an answer that ended well. Seconds count from the request. */
export interface Finished {
  /** As the side reports it; null if it does not. */
  readonly usage: Usage | null;
  /** The tokens that were counted. */
  readonly tokens: number;
  readonly first_token_seconds: number;
  readonly total_seconds: number;
  /** Null if it was not measured, and for near. */
  readonly round_trip_seconds: number | null;
}

/** The speed of a side. Null if nothing is known yet. */
export interface Speed {
  readonly prefill_tokens_per_second: number | null;
  readonly decode_tokens_per_second: number | null;
  readonly round_trip_seconds: number | null;
}

export const UNKNOWN_SPEED: Speed = {
  prefill_tokens_per_second: null,
  decode_tokens_per_second: null,
  round_trip_seconds: null,
};

/** The weight of the newest answer in the mean; the older ones share the rest. */
const NEWEST_WEIGHT = 0.3;

/** The time in the side's queue does not count; the queue is reported separately. */
export function speedAfter(speed: Speed, { usage, tokens, ...times }: Finished): Speed {
  if (usage === null) return speed;
  const { round_trip_seconds: roundTrip } = times;
  const queued = Math.max(0, usage.queue_ms ?? 0) / 1000;
  const first = Math.max(0, times.first_token_seconds - queued);
  const total = Math.max(0, times.total_seconds - queued);
  const computed = Math.max(0, usage.prompt_tokens - (usage.prompt_tokens_details?.cached_tokens ?? 0));
  const written = Math.max(tokens, usage.completion_tokens);
  return {
    prefill_tokens_per_second: rate(speed.prefill_tokens_per_second, computed, first - (roundTrip ?? 0)),
    decode_tokens_per_second: rate(speed.decode_tokens_per_second, written - 1, total - first),
    round_trip_seconds: roundTrip === null ? speed.round_trip_seconds : mean(speed.round_trip_seconds, roundTrip),
  };
}

/** The old rate if this answer shows nothing: no token, or no time that a clock could measure. */
function rate(old: number | null, tokens: number, seconds: number): number | null {
  if (tokens < 1 || seconds <= 0) return old;
  return 1 / mean(old === null ? null : 1 / old, seconds / tokens);
}

function mean(old: number | null, newest: number): number {
  return old === null ? newest : old + NEWEST_WEIGHT * (newest - old);
}
