// Speed: how fast a side has been lately. Finished answers flow in one by one, rates for the next situation flow out. Pure.

/** An answer that ended well. Seconds are from asking, without waiting in a queue. */
export interface Finished {
  /** Of the prompt, those of the cache not counted. */
  readonly computed_tokens: number;
  readonly completion_tokens: number;
  readonly first_token_seconds: number;
  readonly total_seconds: number;
  /** Null where it was not measured, and for near. */
  readonly round_trip_seconds: number | null;
}

/** A side's. Null where nothing is known yet. */
export interface Speed {
  readonly prefill_tokens_per_second: number | null;
  readonly decode_tokens_per_second: number | null;
  readonly round_trip_seconds: number | null;
}
