// What happens to one answer, and what its driver is to do: events flow into step() of answer_machine.ts, effects flow out.
//
// Both are plain data with the keys of their JSON form, the same in both languages: tests/conformance/router_traces.json is written in it. A side
// is "near" or "far"; attempt counts what was asked of that side in this answer, from 1, so that what a cancelled or failed attempt says late is
// told apart from what the next one says.

import type { Side } from "../decision/decision.js";

export type EscalationReason = "escalated_logprob" | "escalated_entropy" | "escalated_repetition" | "escalated_schema";
/** Why another side writes than the one that was decided for. */
export type SwitchReason =
  EscalationReason | "near_failed" | "far_failed" | "near_late" | "near_timeout" | "far_timeout";
export type TimerName = "near_first_token" | "far_first_token" | "between_tokens" | "hedge";
/**
 * connection: none, or it broke. overloaded: 429 or 503. server: it answers with another 5xx, or with nonsense. unauthorized: 401 or 403.
 * request: it says that the request is at fault (another 4xx). device: lost, or out of memory.
 */
export type FailureKind = "connection" | "overloaded" | "server" | "unauthorized" | "request" | "device";

/**
 * The decision. side null: nobody may or can. standby: the other side may be asked too, should it come to that. It holds where no hard rule
 * forbids the other side: the request is not pinned, and with a pin to the other side the decision would be that side.
 */
export interface Start {
  readonly type: "start";
  readonly side: Side | null;
  readonly reason: string;
  readonly standby: boolean;
}

/** A token came (a chunk with a role alone is none). text is "" while a character is incomplete. tool_call, reasoning: a part of a tool call, or of the reasoning, is in it. */
export interface Token {
  readonly type: "token";
  readonly side: Side;
  readonly attempt: number;
  readonly text: string;
  readonly tool_call: boolean;
  readonly reasoning?: boolean;
}

/** The side has answered. */
export interface End {
  readonly type: "end";
  readonly side: Side;
  readonly attempt: number;
  readonly finish_reason: string;
}

/** The side says nothing more. retryable: to ask the same again may help (no connection, 429, 503). */
export interface Failed {
  readonly type: "failed";
  readonly side: Side;
  readonly attempt: number;
  readonly kind: FailureKind;
  readonly retryable: boolean;
}

/** A timer is due that an effect asked for. Not sent for one that was cancelled or started anew since. */
export interface Tick {
  readonly type: "tick";
  readonly timer: TimerName;
}

/** The near answer goes astray (see Watch). */
export interface Escalate {
  readonly type: "escalate";
  readonly reason: EscalationReason;
}

/** The near answer begins to go astray (see Watch.doubts). */
export interface Doubt {
  readonly type: "doubt";
}

/** Whoever asked has left. */
export interface Abort {
  readonly type: "abort";
}

export type Event = Start | Token | End | Failed | Tick | Escalate | Doubt | Abort;

/**
 * Send the request to a side. continue_from: it goes on from this text, which counts towards max_tokens; null: from the start. Where the side asks
 * for patience (Retry-After), a second attempt may wait for as long as the timer of its first token lasts.
 */
export interface Ask {
  readonly type: "ask";
  readonly side: Side;
  readonly continue_from: string | null;
  readonly attempt: number;
}

/**
 * Let far compute the prompt, and show nothing of what it says, so that it begins at once should it be asked. It is no attempt: nothing follows from its
 * failure. Once at most, and never after far was asked.
 */
export interface Warm {
  readonly type: "warm";
}

/** Stop what was asked of the side last. What it still says is ignored. */
export interface Cancel {
  readonly type: "cancel";
  readonly side: Side;
}

/** Show the token of this event. It is an effect of that event alone, so the driver passes on what else came with it. */
export interface Emit {
  readonly type: "emit";
  readonly side: Side;
  readonly text: string;
  readonly tool_call: boolean;
}

/** All the text that was shown no longer holds; what follows starts anew. The switch follows. */
export interface Withdraw {
  readonly type: "withdraw";
}

/** From now on another side writes. at: characters (code points) that stand before; null where nothing had been shown. */
export interface Switch {
  readonly type: "switch";
  readonly side: Side;
  readonly reason: SwitchReason;
  readonly at: number | null;
}

/** The answer is whole. side, reason and switched_at are its route. */
export interface Finish {
  readonly type: "finish";
  readonly finish_reason: string;
  readonly side: Side;
  readonly reason: string;
  readonly switched_at: number | null;
}

/** There is no answer. side: whose failure is the error, the last one; null: no side was to be asked (reason of the decision). */
export interface Fail {
  readonly type: "fail";
  readonly side: Side | null;
  readonly kind: FailureKind | "timeout" | "unavailable";
  readonly reason: string;
}

/** Send a tick in so many milliseconds. A timer of that name that still runs starts anew. */
export interface Timer {
  readonly type: "timer";
  readonly name: TimerName;
  readonly ms: number;
}

export interface CancelTimer {
  readonly type: "cancel_timer";
  readonly name: TimerName;
}

/** Tell the side's circuit how it went. A side that was cancelled, is overloaded or blames the request says nothing about its health. */
export interface CircuitOutcome {
  readonly type: "circuit";
  readonly side: Side;
  readonly outcome: "succeeded" | "failed";
}

export type Effect =
  Ask | Warm | Cancel | Emit | Withdraw | Switch | Finish | Fail | Timer | CancelTimer | CircuitOutcome;
