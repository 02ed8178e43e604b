// Speed: how fast a side has been lately. Pure.
//
// It averages the time per token and not the rate, because a mean of rates hides the answers that stalled, and these
// matter most.

/** An answer that ended well. Seconds count from the request, without the time in a queue. */
export interface Finished {
  /** The prompt's tokens that were not in the cache. */
  readonly computed_tokens: number;
  readonly completion_tokens: number;
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

export function speedAfter(speed: Speed, finished: Finished): Speed {
  const { first_token_seconds: first, total_seconds: total, round_trip_seconds: roundTrip } = finished;
  return {
    prefill_tokens_per_second: rate(
      speed.prefill_tokens_per_second,
      finished.computed_tokens,
      first - (roundTrip ?? 0),
    ),
    decode_tokens_per_second: rate(speed.decode_tokens_per_second, finished.completion_tokens - 1, total - first),
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
