// A situation: everything that a decision depends on, about the request, both sides and the device, measured before the
// decision.
//
// Unknown numbers are null, and no rule depends on them.

import type { Stake } from "../agent/stake.js";
import type { Side } from "./decision.js";
import type { Media, MediaKind } from "./media.js";
import type { NearSignals } from "./near_signals.js";

/** "half-open": one request is let through; meanwhile the state for any other request is "open". */
export type CircuitState = "closed" | "open" | "half-open";
export type Thermal = "nominal" | "fair" | "serious" | "critical";

export interface SituationMessage {
  readonly role: string;
  /** All the text, its parts joined by nothing. */
  readonly content: string;
  readonly labels: readonly string[];
  /**
   * The texts in the order of the prompt, if there are several: the name, the reasoning, the parts of the content, then
   * the names and arguments of its calls.
   */
  readonly parts?: readonly string[];
}

/** The state of either side. */
interface SideState {
  /** In tokens; null if no limit is known. */
  readonly context: number | null;
  readonly tools: boolean;
  /** Whether it reads pictures; likewise videos and sound. */
  readonly vision: boolean;
  readonly video: boolean;
  readonly sound: boolean;
  /** First parts of BCP 47 tags ("en"); null for all. */
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
  /** The kinds of media that it can turn into texts: pictures and videos if its model reads them, sound if there is a transcriber. */
  readonly describes: readonly MediaKind[];
  /** From 0 to 1. */
  readonly battery: number | null;
  readonly charging: boolean | null;
  readonly thermal: Thermal | null;
}

export interface FarState extends SideState {
  readonly online: boolean;
  readonly round_trip_seconds: number | null;
  /** In this UTC day, like requests_today; see budget.ts. */
  readonly spent_usd_today: number;
  readonly requests_today: number;
}

export interface Situation {
  readonly messages: readonly SituationMessage[];
  readonly near: NearState;
  readonly far: FarState;
  readonly labels: readonly string[];
  /**
   * All other texts that would leave the device with the request, as `privateTexts` finds them. They meet no other
   * text in the prompt; texts that meet only one another, such as a query and a document, are a list.
   */
  readonly texts: readonly (string | readonly string[])[];
  readonly pin: Side | null;
  readonly max_tokens: number | null;
  /** Whether the request needs tools. */
  readonly tools: boolean;
  /** Of all its messages, of every role. */
  readonly media: readonly Media[];
  readonly language: string | null;
  /** Of a step of an agent. */
  readonly stake?: Stake | null;
  readonly near_signals: NearSignals | null;
  /** The vector of the last user message, from the model that the policy's predictor names. */
  readonly embedding: readonly number[] | null;
}

/** The state of a side about which nothing is known yet. */
export const UNKNOWN_SIDE: SideState = {
  context: null,
  tools: true,
  vision: false,
  video: false,
  sound: false,
  languages: null,
  prompt_tokens: null,
  cached_tokens: 0,
  prefill_tokens_per_second: null,
  decode_tokens_per_second: null,
  queue_seconds: 0,
  circuit: "closed",
};
