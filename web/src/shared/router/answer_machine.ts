// The answer machine: the course of one answer that two sides may write.
//
// begin(rules) is the first state. step(state, event) returns the next state and the effects that the driver must carry
// out, in order. The machine is pure: it receives events and knows nothing about time, HTTP or devices.
// tests/conformance/router_traces.json requires its effects.
//
// choosing --first token--> running --another side is asked--> switching --its first token--> running --> done
//     |                        |                                   |                             |
//     +------------------------+------------- failed / aborted ----+-----------------------------+
//
// These rules always hold:
// - There is one finish or one fail, and nothing after it. After an abort there is neither.
// - Only the side that writes is shown. If two sides were asked at once (hedging), the one with the first token writes.
// - A side is asked again only before its first token, and never for a request that it rejects. A side that failed for
//   good is not asked again. Once far writes, it stops only by failing, so each side is switched to at most once.
// - Far computes the prompt ahead (warm) at most once, before it is asked, and never for a private request.
// - After part of a tool call was shown, there is no switch: the tool would be called twice.
// - No side continues another side's unfinished reasoning: what was shown is withdrawn.
// - If near began before the decision and failed, that was its first attempt, and the reason for a far answer.
// - The text shown remains until another side's first token, so an escalation to a far side that fails loses no text.

import { isObject } from "../declared.js";
import type { Side } from "../decision/decision.js";
import type { Policy } from "../decision/policy_schema.js";
import type {
  EarlyFailure,
  Effect,
  End,
  Escalate,
  Event,
  Failed,
  FailureKind,
  Start,
  SwitchReason,
  TimerName,
  Token,
} from "./events.js";

export type Phase = "choosing" | "running" | "switching" | "done" | "failed" | "aborted";

/** The policy's rules for an answer, and facts about the request. Times are in milliseconds. */
export interface Rules {
  /** The effect of an escalation. */
  readonly then: "never" | "continue" | "restart";
  /** When far computes the prompt of an answer that near writes: from the start, or once it begins to go wrong. */
  readonly warm: "never" | "doubt" | "always";
  readonly near_continues: boolean;
  readonly far_takes_over: boolean;
  readonly near_first_token_ms: number;
  readonly far_first_token_ms: number;
  readonly between_tokens_ms: number;
  readonly hedge_after_ms: number | null;
  /** The number of further attempts of a side before its first token. */
  readonly retries: number;
  /** Far is never asked. */
  readonly private: boolean;
  /** The sides that can continue a given text; any other side starts over, and the text shown so far is withdrawn. */
  readonly resumes: readonly Side[];
  /** The JSON that near's complete answer must be; otherwise it escalates. Null: any text. */
  readonly json: "object" | "value" | null;
}

/** The facts about a request and its far side from which the rules of its answer follow. */
export interface AnswerFacts {
  readonly private: boolean;
  /** "ids": token ids of near's. */
  readonly prompt: "chat" | "text" | "ids";
  /** The type of the answer's format; null for none. */
  readonly format: string | null;
  /** As in the request. */
  readonly tool_choice: unknown;
  /** As `continue_final_message` of the request: the answer goes on after a beginning that the client wrote. */
  readonly continues: unknown;
  /** Of the far side; null if there is none. */
  readonly dialect: string | null;
}

export function rulesOf({ escalation, fallback, timeouts, retries }: Policy, facts: AnswerFacts): Rules {
  return {
    then: escalation.then,
    // OpenAI's servers do not report what of a prompt they have in their cache.
    warm: facts.dialect === "openai" ? "never" : escalation.warm,
    ...fallback,
    ...timeouts,
    retries,
    private: facts.private,
    resumes: resuming(facts),
    // What the client began is not in near's text.
    json: escalation.failing_schema && facts.continues !== true ? (JSON_FORMATS[facts.format ?? ""] ?? null) : null,
  };
}

const JSON_FORMATS: Readonly<Record<string, Rules["json"]>> = { json_object: "object", json_schema: "value" };

/** The sides that can continue an answer that the other one, or they themselves, began. */
function resuming({ prompt, format, tool_choice: choice, dialect }: AnswerFacts): readonly Side[] {
  // A grammar starts over with each request, in the middle of the text. Near's token ids are another text for far.
  if (isConstrained(format, choice) || prompt === "ids") return [];
  // Every server continues the prompt of a completion; OpenAI's continue no message.
  return prompt === "chat" && dialect === "openai" ? ["near"] : SIDES;
}

/** Whether a grammar constrains the answer from its first token on. */
function isConstrained(format: string | null, choice: unknown): boolean {
  return (format ?? "text") !== "text" || choice === "required" || (typeof choice === "object" && choice !== null);
}

/** The status of one side in this answer. */
export interface SideStatus {
  readonly attempts: number;
  /** The attempts at the part that the side was last asked for. */
  readonly tries: number;
  /** The last attempt may still send tokens. */
  readonly live: boolean;
  /** The last attempt has sent a token. */
  readonly started: boolean;
  /** The side failed for good. */
  readonly failed: boolean;
}

export interface State {
  readonly rules: Rules;
  readonly phase: Phase;
  /** The side that writes, or is the first to be asked; with reason and switchedAt it is the answer's route. */
  readonly side: Side | null;
  readonly reason: string;
  readonly switchedAt: number | null;
  /** The text shown so far. */
  readonly text: string;
  readonly toolCalls: boolean;
  /** Part of the reasoning is shown too: until it ends, no other side can continue it. */
  readonly reasoning: boolean;
  readonly standby: boolean;
  readonly near: SideStatus;
  readonly far: SideStatus;
  /** Why a side other than `side` would write. */
  readonly nextReason: SwitchReason | null;
  /** That side starts over. */
  readonly restart: boolean;
  /** Far was already asked to compute the prompt. */
  readonly warmed: boolean;
  readonly timers: readonly TimerName[];
}

const SIDES: readonly Side[] = ["near", "far"];
const ENDED: ReadonlySet<Phase> = new Set<Phase>(["done", "failed", "aborted"]);
const HEALTH_NEUTRAL: ReadonlySet<string> = new Set<FailureKind>(["overloaded", "request"]);
const NOT_ASKED: SideStatus = { attempts: 0, tries: 0, live: false, started: false, failed: false };

/** What an earlier page has shown of the answer, if it was not withdrawn. */
export interface Begun {
  readonly text: string;
  readonly toolCalls: boolean;
  readonly reasoning: boolean;
  readonly switchedAt: number | null;
}

const NOTHING: Begun = { text: "", toolCalls: false, reasoning: false, switchedAt: null };

/** The side that starts continues after ``begun``; if it cannot, that is withdrawn at its first token. */
export function begin(rules: Rules, begun: Begun = NOTHING): State {
  const { text, toolCalls, reasoning, switchedAt } = begun;
  return {
    rules,
    phase: "choosing",
    side: null,
    reason: "",
    switchedAt,
    text,
    toolCalls,
    reasoning,
    standby: false,
    near: NOT_ASKED,
    far: NOT_ASKED,
    nextReason: null,
    restart: false,
    warmed: false,
    timers: [],
  };
}

/**
 * Returns the state after an event and the effects to carry out. There are no effects after the end of the answer, or
 * for an event of an attempt that no longer runs.
 */
export function step(state: State, event: Event): readonly [State, readonly Effect[]] {
  const effects: Effect[] = [];
  return [ENDED.has(state.phase) ? state : after(state, event, effects), effects];
}

// Each of these functions returns the next state and appends to `effects`.

function after(state: State, event: Event, effects: Effect[]): State {
  switch (event.type) {
    case "start":
      return state.side === null ? start(state, event, effects) : state;
    case "token":
    case "end":
    case "failed": {
      const status = state[event.side];
      return status.live && status.attempts === event.attempt ? sideEvent(state, event, effects) : state;
    }
    case "tick":
      return state.timers.includes(event.timer) ? tick(state, event.timer, effects) : state;
    case "escalate":
      return escalate(state, event, effects);
    case "doubt":
      return state.phase === "running" && state.side === "near" && state.rules.warm === "doubt"
        ? warm(state, effects)
        : state;
    case "abort":
      return { ...stopAll(state, effects), phase: "aborted" };
    default:
      return event satisfies never;
  }
}

function start(state: State, { side, reason, standby, near_failed: early = null }: Start, effects: Effect[]): State {
  if (side === null || (side === "far" && state.rules.private)) {
    effects.push({ type: "fail", side: null, kind: "unavailable", reason: side === null ? reason : "private" });
    return { ...state, phase: "failed" };
  }
  const isShown = state.text !== "" || state.toolCalls || state.reasoning;
  const restart =
    isShown && (state.toolCalls || !state.rules.resumes.includes(side) || (state.reasoning && state.text === ""));
  const begun: State = { ...state, side, reason, standby, restart, nextReason: restart ? "resumed" : null };
  const next = early === null ? ask(begun, side, effects) : startWithout(begun, side, early, effects);
  if (!next.near.live) return next;
  const { hedge_after_ms, warm: when } = state.rules;
  const warmed = when === "always" ? warm(next, effects) : next;
  return hedge_after_ms !== null && maySwitch(warmed, "far")
    ? setTimer(warmed, "hedge", hedge_after_ms, effects)
    : warmed;
}

/** Start after near's first attempt, which failed before the decision for ``side``. */
function startWithout(state: State, side: Side, { kind, retryable }: EarlyFailure, effects: Effect[]): State {
  const why = kind === "timeout" ? "near_timeout" : "near_failed";
  if (side === "near")
    return failed({ ...state, near: { ...NOT_ASKED, attempts: 1, tries: 1 } }, side, kind, why, effects, retryable);
  reportFailure("near", kind, effects);
  // Far answers requests that near rejects, as it was decided.
  return ask(kind === "request" ? state : { ...state, reason: why }, side, effects);
}

function sideEvent(before: State, event: Token | End | Failed, effects: Effect[]): State {
  const { side } = event;
  if (event.type === "failed") {
    return failed(before, side, event.kind, side === "near" ? "near_failed" : "far_failed", effects, event.retryable);
  }
  const state = before[side].started ? before : beginWriting(before, side, effects);
  switch (event.type) {
    case "token": {
      const { text, tool_call, reasoning = false } = event;
      if (text !== "" || tool_call || reasoning) effects.push({ type: "emit", side, text, tool_call });
      const shown = {
        ...state,
        text: state.text + text,
        toolCalls: state.toolCalls || tool_call,
        reasoning: state.reasoning || reasoning,
      };
      return setTimer(shown, "between_tokens", state.rules.between_tokens_ms, effects);
    }
    case "end": {
      // The limit of tokens, which far would have too, cuts JSON of any model.
      const escalated =
        side === "near" && event.finish_reason !== "length" && !isJson(state.text, state.rules.json)
          ? escalate(state, { type: "escalate", reason: "escalated_schema" }, effects)
          : state;
      if (escalated !== state) return escalated;
      const ended = stopAll({ ...state, [side]: { ...state[side], live: false } }, effects);
      const { reason, switchedAt } = ended;
      effects.push({ type: "circuit", side, outcome: "succeeded" });
      effects.push({ type: "finish", finish_reason: event.finish_reason, side, reason, switched_at: switchedAt });
      return { ...ended, phase: "done" };
    }
    default:
      return event satisfies never;
  }
}

/** The side sends its first token since it was asked: from now on only this side writes. */
function beginWriting(before: State, side: Side, effects: Effect[]): State {
  const other = otherThan(side);
  let state = before[other].live ? cancel(before, other, effects) : before;
  state = stopTimer(stopTimer(state, FIRST_TOKEN[side], effects), "hedge", effects);
  // A side that resumes its own answer changes nothing before its first token. If nothing was shown, there is nothing
  // to withdraw.
  const { nextReason } = state;
  const withdraws = state.restart && (state.text !== "" || state.reasoning || state.toolCalls);
  if (withdraws) effects.push({ type: "withdraw" });
  if (nextReason !== null && (withdraws || side !== state.side)) {
    const text = withdraws ? "" : state.text;
    // If no text is shown, either none was shown before, or an earlier switch withdrew it.
    const at = withdraws ? 0 : text === "" ? state.switchedAt : codePoints(text);
    effects.push({ type: "switch", side, reason: nextReason, at });
    const [reasoning, toolCalls] = [state.reasoning && !withdraws, state.toolCalls && !withdraws];
    state = { ...state, side, reason: nextReason, switchedAt: at, text, reasoning, toolCalls };
  }
  return { ...state, [side]: { ...state[side], started: true }, phase: "running", nextReason: null, restart: false };
}

function failed(
  before: State,
  side: Side,
  kind: FailureKind | "timeout",
  reason: SwitchReason,
  effects: Effect[],
  retryable = false,
): State {
  const status = before[side];
  const other = otherThan(side);
  let state = stopTimer(before, FIRST_TOKEN[side], effects);
  if (status.started) state = stopTimer(state, "between_tokens", effects);
  reportFailure(side, kind, effects);
  if (retryable && kind !== "request" && !status.started && status.tries <= state.rules.retries)
    return ask(state, side, effects, status.tries + 1);
  state = { ...state, [side]: { ...status, live: false, failed: true } };
  // Both sides were asked: the other one goes on alone.
  if (state[other].live) return other === state.side ? state : { ...state, nextReason: reason };
  // The client must see the error of a request that is wrong from the start. If one side accepted the request, its
  // answer matters more.
  const blamed = kind === "request" && state.phase === "choosing";
  if (!blamed && mayTakeOver(state, other)) return switchTo(state, other, reason, effects, false);
  state = stopAll(state, effects);
  effects.push({ type: "fail", side, kind, reason });
  return { ...state, phase: "failed" };
}

function reportFailure(side: Side, kind: FailureKind | "timeout", effects: Effect[]): void {
  if (!HEALTH_NEUTRAL.has(kind)) effects.push({ type: "circuit", side, outcome: "failed" });
}

function tick(before: State, timer: TimerName, effects: Effect[]): State {
  const state = { ...before, timers: before.timers.filter((name) => name !== timer) };
  if (timer === "hedge")
    return maySwitch(state, "far") ? ask({ ...state, nextReason: "near_late" }, "far", effects) : state;
  const side = timedSide(timer, state);
  return side === null ? state : timedOut(state, side, effects);
}

/** The side that a timer waits for; null for the hedge timer. */
export function timedSide(timer: TimerName, { side }: State): Side | null {
  switch (timer) {
    case "hedge":
      return null;
    case "near_first_token":
      return "near";
    case "far_first_token":
      return "far";
    case "between_tokens":
      return side;
    default:
      return timer satisfies never;
  }
}

function timedOut(state: State, side: Side, effects: Effect[]): State {
  return failed(
    cancel(state, side, effects),
    side,
    "timeout",
    side === "near" ? "near_timeout" : "far_timeout",
    effects,
  );
}

function escalate(state: State, { reason }: Escalate, effects: Effect[]): State {
  if (state.phase !== "running" || state.side !== "near" || state.rules.then === "never" || !maySwitch(state, "far"))
    return state;
  const stopped = stopTimer(cancel(state, "near", effects), "between_tokens", effects);
  return switchTo(stopped, "far", reason, effects, state.rules.then === "restart");
}

/** Ask the other side to write on. The text shown so far remains until that side sends a token. */
function switchTo(before: State, to: Side, reason: SwitchReason, effects: Effect[], anew: boolean): State {
  const state = stopTimer(before, "hedge", effects);
  const phase = state.phase === "choosing" ? "choosing" : "switching";
  const restart = anew || !state.rules.resumes.includes(to) || (state.reasoning && state.text === "");
  return ask({ ...state, phase, nextReason: reason, restart }, to, effects);
}

function ask(state: State, side: Side, effects: Effect[], tries = 1): State {
  const attempt = state[side].attempts + 1;
  effects.push({ type: "ask", side, continue_from: state.restart || state.text === "" ? null : state.text, attempt });
  const ms = side === "near" ? state.rules.near_first_token_ms : state.rules.far_first_token_ms;
  return setTimer(
    { ...state, [side]: { ...NOT_ASKED, attempts: attempt, tries, live: true } },
    FIRST_TOKEN[side],
    ms,
    effects,
  );
}

function warm(state: State, effects: Effect[]): State {
  if (state.rules.then === "never" || state.warmed || state.far.attempts > 0 || !maySwitch(state, "far")) return state;
  effects.push({ type: "warm" });
  return { ...state, warmed: true };
}

function cancel(state: State, side: Side, effects: Effect[]): State {
  effects.push({ type: "cancel", side });
  const stopped = stopTimer(state, FIRST_TOKEN[side], effects);
  return { ...stopped, [side]: { ...stopped[side], live: false } };
}

/** Stop both sides and all timers. */
function stopAll(before: State, effects: Effect[]): State {
  let state = before;
  for (const side of SIDES) if (state[side].live) state = cancel(state, side, effects);
  for (const name of state.timers) effects.push({ type: "cancel_timer", name });
  return { ...state, timers: [] };
}

function setTimer(state: State, name: TimerName, ms: number, effects: Effect[]): State {
  effects.push({ type: "timer", name, ms });
  return state.timers.includes(name) ? state : { ...state, timers: [...state.timers, name] };
}

function stopTimer(state: State, name: TimerName, effects: Effect[]): State {
  if (!state.timers.includes(name)) return state;
  effects.push({ type: "cancel_timer", name });
  return { ...state, timers: state.timers.filter((timer) => timer !== name) };
}

function maySwitch(state: State, to: Side): boolean {
  if (to === "far" && state.rules.private) return false;
  return state.standby && !state.toolCalls && !state[to].failed;
}

/** Whether a side may go on after the other one failed. */
function mayTakeOver(state: State, to: Side): boolean {
  if (to === "far") return state.rules.far_takes_over && maySwitch(state, "far");
  // Near was well when its answer was escalated, and no other side has shown anything since: near resumes its own
  // answer.
  return (state.rules.near_continues || state.side === "near") && maySwitch(state, "near");
}

const FIRST_TOKEN: Readonly<Record<Side, TimerName>> = { near: "near_first_token", far: "far_first_token" };

function otherThan(side: Side): Side {
  return side === "near" ? "far" : "near";
}

/** Whether a text is such JSON, as far as that can be said without a validator. */
function isJson(text: string, kind: Rules["json"]): boolean {
  if (kind === null) return true;
  try {
    const value: unknown = JSON.parse(text);
    return kind === "value" || isObject(value);
  } catch {
    return false;
  }
}

function codePoints(text: string): number {
  return Array.from(text).length;
}
