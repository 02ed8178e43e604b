// A situation: all that a decision depends on, measured before it. Facts of the request, of both sides and of the device flow in.
//
// Numbers that are not known are null, and nothing is decided on them.

import type { Side } from "./decision.js";

/** "half-open": one request is let through; who asks for a second one meanwhile says "open". */
export type CircuitState = "closed" | "open" | "half-open";
export type Thermal = "nominal" | "fair" | "serious" | "critical";

export interface SituationMessage {
  readonly role: string;
  /** All of its text, the parts joined by nothing. */
  readonly content: string;
  readonly labels: readonly string[];
  /** Of its text, if there are several. */
  readonly parts?: readonly string[];
}

/** What is told of either side. */
interface SideState {
  /** In tokens; null for no limit known. */
  readonly context: number | null;
  readonly tools: boolean;
  readonly vision: boolean;
  /** BCP 47's first part ("en"); null for all. */
  readonly languages: readonly string[] | null;
  readonly prompt_tokens: number | null;
  readonly cached_tokens: number;
  readonly prefill_tokens_per_second: number | null;
  readonly decode_tokens_per_second: number | null;
  readonly queue_seconds: number;
  readonly circuit: CircuitState;
}

export interface NearState extends SideState {
  readonly available: boolean;
  /** From 0 to 1. */
  readonly battery: number | null;
  readonly charging: boolean | null;
  readonly thermal: Thermal | null;
}

export interface FarState extends SideState {
  readonly online: boolean;
  readonly round_trip_seconds: number | null;
  /** Of this UTC day, as requests_today; see budget.ts. */
  readonly spent_usd_today: number;
  readonly requests_today: number;
}

/** What the near model itself says of the prompt, in nats: the mean log-probability of its tokens, and of its own first up to 4 answer tokens. */
export interface NearSignals {
  readonly prompt_mean_logprob: number | null;
  readonly first_entropy: number | null;
  readonly first_mean_logprob: number | null;
}

export interface Situation {
  readonly messages: readonly SituationMessage[];
  readonly near: NearState;
  readonly far: FarState;
  readonly labels: readonly string[];
  /** Every other text that would leave with the request: arguments of tool calls, tool definitions, schemas, stop strings, names. */
  readonly texts: readonly string[];
  readonly pin: Side | null;
  readonly max_tokens: number | null;
  /** What the request needs, as vision. */
  readonly tools: boolean;
  readonly vision: boolean;
  readonly language: string | null;
  readonly near_signals: NearSignals | null;
}

/** What is said of a side that nothing is known of yet. */
export const UNKNOWN_SIDE: SideState = {
  context: null,
  tools: true,
  vision: false,
  languages: null,
  prompt_tokens: null,
  cached_tokens: 0,
  prefill_tokens_per_second: null,
  decode_tokens_per_second: null,
  queue_seconds: 0,
  circuit: "closed",
};
