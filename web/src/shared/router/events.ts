// The events of one answer, and the effects that its driver must carry out: the input and output of step() in
// answer_machine.ts, for the drivers in both languages.
//
// Both are plain data with the keys of their JSON form, the same in both languages;
// tests/conformance/router_traces.json uses it. A side is "near" or "far". attempt counts the attempts of that side in
// this answer from 1, to distinguish late output of a cancelled or failed attempt from output of the next one.

import type { Side } from "../decision/decision.js";

export type EscalationReason = "escalated_logprob" | "escalated_entropy" | "escalated_repetition" | "escalated_schema";
/** Why another side writes than the one that was chosen. */
export type SwitchReason =
  | EscalationReason
  | "near_failed"
  | "far_failed"
  | "near_late"
  | "near_timeout"
  | "far_timeout"
  /** A later page goes on with the answer, and its side cannot continue what was shown. */
  | "resumed";
export type TimerName = "near_first_token" | "far_first_token" | "between_tokens" | "hedge";
/**
 * connection: no connection, or it broke. overloaded: 429, 503 or 529. server: another 5xx, or a response that is not in
 * OpenAI's form. unauthorized: 401 or 403. request: the side rejects the request as wrong (another 4xx). device: lost,
 * or out of memory.
 */
export type FailureKind = "connection" | "overloaded" | "server" | "unauthorized" | "request" | "device";

/**
 * The decision. side is null if no side may or can answer. standby: the other side may be asked too if necessary. It is
 * true if no hard rule forbids the other side: the request is not pinned, and with a pin to the other side the decision
 * would be that side.
 */
export interface Start {
  readonly type: "start";
  readonly side: Side | null;
  readonly reason: string;
  readonly standby: boolean;
  readonly near_failed?: EarlyFailure | null;
}

/** How near failed that began before the decision, which then had no signals of near's. Null or absent: it did not. */
export interface EarlyFailure {
  readonly kind: FailureKind | "timeout";
  readonly retryable: boolean;
}

/**
 * A token arrived. A chunk with only a role is not a token. text is "" while a character is incomplete. tool_call,
 * reasoning: it contains part of a tool call, or of the reasoning, which is not in text.
 */
export interface Token {
  readonly type: "token";
  readonly side: Side;
  readonly attempt: number;
  readonly text: string;
  readonly tool_call: boolean;
  readonly reasoning?: boolean;
}

/** The side has finished its answer. */
export interface End {
  readonly type: "end";
  readonly side: Side;
  readonly attempt: number;
  readonly finish_reason: string;
}

/**
 * The side failed and sends nothing more. retryable: the same request may succeed if it is sent again (no connection,
 * 429, 503, 529).
 */
export interface Failed {
  readonly type: "failed";
  readonly side: Side;
  readonly attempt: number;
  readonly kind: FailureKind;
  readonly retryable: boolean;
}

/** A timer that an effect started is due. A timer that was cancelled or restarted since sends no tick. */
export interface Tick {
  readonly type: "tick";
  readonly timer: TimerName;
}

/** The near answer goes wrong (see Watch). */
export interface Escalate {
  readonly type: "escalate";
  readonly reason: EscalationReason;
}

/** The near answer begins to go wrong (see Watch.doubts). */
export interface Doubt {
  readonly type: "doubt";
}

/** The client has left. */
export interface Abort {
  readonly type: "abort";
}

export type Event = Start | Token | End | Failed | Tick | Escalate | Doubt | Abort;

/**
 * Send the request to a side. continue_from: the side continues this text, which counts towards max_tokens; null: it
 * starts from the beginning. If the side asks to wait (Retry-After), a second attempt may wait for as long as the timer
 * of its first token runs.
 */
export interface Ask {
  readonly type: "ask";
  readonly side: Side;
  readonly continue_from: string | null;
  readonly attempt: number;
}

/**
 * Let far compute the prompt, and show nothing, so that far can start at once if it is asked. This is not an attempt:
 * its failure has no consequences. It happens at most once, and never after far was asked.
 */
export interface Warm {
  readonly type: "warm";
}

/** Stop the last attempt of the side. Ignore what it still sends. */
export interface Cancel {
  readonly type: "cancel";
  readonly side: Side;
}

/**
 * Show the token of this event. The effect belongs to that event alone, so the driver also passes on the event's other
 * content.
 */
export interface Emit {
  readonly type: "emit";
  readonly side: Side;
  readonly text: string;
  readonly tool_call: boolean;
}

/** All text shown so far is withdrawn, and the answer starts over. A switch follows. */
export interface Withdraw {
  readonly type: "withdraw";
}

/**
 * Another side writes from now on. at: the number of characters (code points) shown before; null if nothing had been
 * shown.
 */
export interface Switch {
  readonly type: "switch";
  readonly side: Side;
  readonly reason: SwitchReason;
  readonly at: number | null;
}

/** The answer is complete. side, reason and switched_at are its route. */
export interface Finish {
  readonly type: "finish";
  readonly finish_reason: string;
  readonly side: Side;
  readonly reason: string;
  readonly switched_at: number | null;
}

/**
 * The answer failed. side: the side whose failure, the last one, is the error; null: no side could be asked, and reason
 * says why.
 */
export interface Fail {
  readonly type: "fail";
  readonly side: Side | null;
  readonly kind: FailureKind | "timeout" | "unavailable";
  readonly reason: string;
}

/** Send a tick after ms milliseconds. If a timer of that name is running, it restarts. */
export interface Timer {
  readonly type: "timer";
  readonly name: TimerName;
  readonly ms: number;
}

export interface CancelTimer {
  readonly type: "cancel_timer";
  readonly name: TimerName;
}

/**
 * Report the outcome to the side's circuit. A side that was cancelled, is overloaded or rejects the request reveals
 * nothing about its health.
 */
export interface CircuitOutcome {
  readonly type: "circuit";
  readonly side: Side;
  readonly outcome: "succeeded" | "failed";
}

export type Effect =
  | Ask
  | Warm
  | Cancel
  | Emit
  | Withdraw
  | Switch
  | Finish
  | Fail
  | Timer
  | CancelTimer
  | CircuitOutcome;
