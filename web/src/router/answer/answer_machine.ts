// The answer machine: what becomes of one answer that two sides may write.
//
// begin(rules) is the first state; step(state, event) gives the next one and what the driver is to do, in order. Pure: it knows neither time nor HTTP
// nor devices, only the events that it is told. server_fallback/router/answer/answer_machine.py is the same machine, and
// tests/conformance/router_traces.json holds both to the same effects.
//
// choosing --first token--> running --another side is asked--> switching --its first token--> running --> done
//     |                        |                                   |                             |
//     +------------------------+------------- failed / aborted ----+-----------------------------+
//
// What it keeps to, whatever happens:
// - one finish or one fail, and nothing after; after an abort neither.
// - Only the side that writes is shown. Of two that were asked at once (hedging) the first that speaks writes.
// - A side is asked again only before its first token, and never for a request that it blames. A side that failed for good is asked no more.
//   Far ends only by failing, once it writes, so each side is switched to once at most.
// - Far computes the prompt ahead at most once, before it is asked, and never for a private request.
// - After a part of a tool call was shown nothing is switched: it would be called twice.
// - Until another side's first token, what was shown stands, so an escalation to a far side that then fails costs no text.

import type { Side } from "../decision/decision.js";
import type {
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

/** What the policy says of a running answer, and what is known of the request. Times in milliseconds. */
export interface Rules {
  /** What an escalation does. */
  readonly then: "never" | "continue" | "restart";
  /** When far computes the prompt of an answer that near writes: from the start, or once it begins to go astray. */
  readonly warm: "never" | "doubt" | "always";
  readonly near_continues: boolean;
  readonly far_takes_over: boolean;
  readonly near_first_token_ms: number;
  readonly far_first_token_ms: number;
  readonly between_tokens_ms: number;
  readonly hedge_after_ms: number | null;
  /** How often a side is asked again before its first token. */
  readonly retries: number;
  /** Far is never asked. */
  readonly private: boolean;
  /** The sides that can go on from given text; another starts anew, and what was shown is withdrawn. */
  readonly resumes: readonly Side[];
}

export const DEFAULT_RULES: Rules = {
  then: "never",
  warm: "never",
  near_continues: true,
  far_takes_over: true,
  near_first_token_ms: 20_000,
  far_first_token_ms: 20_000,
  between_tokens_ms: 20_000,
  hedge_after_ms: null,
  retries: 1,
  private: false,
  resumes: ["near", "far"],
};

/** A side in this answer. */
export interface Asked {
  readonly attempts: number;
  /** Attempts at the part that it was asked for last. */
  readonly tries: number;
  /** The last attempt may still speak. */
  readonly live: boolean;
  /** The last attempt has spoken. */
  readonly spoke: boolean;
  /** For good. */
  readonly failed: boolean;
}

export interface State {
  readonly rules: Rules;
  readonly phase: Phase;
  /** Who writes, or is the first to be asked; with reason and switchedAt the answer's route. */
  readonly side: Side | null;
  readonly reason: string;
  readonly switchedAt: number | null;
  /** What stands shown. */
  readonly text: string;
  readonly toolCalls: boolean;
  /** A part of the reasoning stands shown too: in the middle of it no side goes on from another's. */
  readonly reasoning: boolean;
  readonly standby: boolean;
  readonly near: Asked;
  readonly far: Asked;
  /** Why a side other than `side` would write. */
  readonly nextReason: SwitchReason | null;
  /** It starts anew. */
  readonly restart: boolean;
  /** Far was told to compute the prompt. */
  readonly warmed: boolean;
  readonly timers: readonly TimerName[];
}

const SIDES: readonly Side[] = ["near", "far"];
const ENDED: ReadonlySet<Phase> = new Set<Phase>(["done", "failed", "aborted"]);
const SAYS_NOTHING_OF_HEALTH: ReadonlySet<string> = new Set<FailureKind>(["overloaded", "request"]);
const UNASKED: Asked = { attempts: 0, tries: 0, live: false, spoke: false, failed: false };

export function begin(rules: Rules): State {
  return {
    rules,
    phase: "choosing",
    side: null,
    reason: "",
    switchedAt: null,
    text: "",
    toolCalls: false,
    reasoning: false,
    standby: false,
    near: UNASKED,
    far: UNASKED,
    nextReason: null,
    restart: false,
    warmed: false,
    timers: [],
  };
}

/** The state after an event, and what is to be done. Nothing, where a side speaks that runs no longer, or after the end. */
export function step(state: State, event: Event): readonly [State, readonly Effect[]] {
  const effects: Effect[] = [];
  return [ENDED.has(state.phase) ? state : after(state, event, effects), effects];
}

// Each of these gives the next state and adds what is to be done to `effects`.

function after(state: State, event: Event, effects: Effect[]): State {
  switch (event.type) {
    case "start":
      return state.side === null ? start(state, event, effects) : state;
    case "token":
    case "end":
    case "failed": {
      const asked = state[event.side];
      return asked.live && asked.attempts === event.attempt ? said(state, event, effects) : state;
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
      return { ...silence(state, effects), phase: "aborted" };
    default:
      return event satisfies never;
  }
}

function start(state: State, { side, reason, standby }: Start, effects: Effect[]): State {
  if (side === null || (side === "far" && state.rules.private)) {
    effects.push({ type: "fail", side: null, kind: "unavailable", reason: side === null ? reason : "private" });
    return { ...state, phase: "failed" };
  }
  const asked = ask({ ...state, side, reason, standby }, side, effects);
  if (side === "far") return asked;
  const { hedge_after_ms, warm: when } = state.rules;
  const warmed = when === "always" ? warm(asked, effects) : asked;
  return hedge_after_ms !== null && maySwitch(warmed, "far")
    ? setTimer(warmed, "hedge", hedge_after_ms, effects)
    : warmed;
}

function said(before: State, event: Token | End | Failed, effects: Effect[]): State {
  const { side } = event;
  if (event.type === "failed") {
    return failed(before, side, event.kind, side === "near" ? "near_failed" : "far_failed", effects, event.retryable);
  }
  const state = before[side].spoke ? before : writes(before, side, effects);
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
      const ended = silence({ ...state, [side]: { ...state[side], live: false } }, effects);
      const { reason, switchedAt } = ended;
      effects.push({ type: "circuit", side, outcome: "succeeded" });
      effects.push({ type: "finish", finish_reason: event.finish_reason, side, reason, switched_at: switchedAt });
      return { ...ended, phase: "done" };
    }
    default:
      return event satisfies never;
  }
}

/** The side speaks for the first time since it was asked: from now on it alone writes. */
function writes(before: State, side: Side, effects: Effect[]): State {
  const other = otherThan(side);
  let state = before[other].live ? cancel(before, other, effects) : before;
  state = stopTimer(stopTimer(state, FIRST_TOKEN[side], effects), "hedge", effects);
  // Before its own first token a side that resumes its answer changes nothing; nor is there anything to withdraw where nothing was shown.
  const { nextReason } = state;
  const withdraws = state.restart && (state.text !== "" || state.reasoning);
  if (withdraws) effects.push({ type: "withdraw" });
  if (nextReason !== null && (withdraws || side !== state.side)) {
    const text = withdraws ? "" : state.text;
    // Where no text stands, either none was shown, or the switch before withdrew it.
    const at = withdraws ? 0 : text === "" ? state.switchedAt : codePoints(text);
    effects.push({ type: "switch", side, reason: nextReason, at });
    state = { ...state, side, reason: nextReason, switchedAt: at, text, reasoning: state.reasoning && !withdraws };
  }
  return { ...state, [side]: { ...state[side], spoke: true }, phase: "running", nextReason: null, restart: false };
}

function failed(
  before: State,
  side: Side,
  kind: FailureKind | "timeout",
  reason: SwitchReason,
  effects: Effect[],
  retryable = false,
): State {
  const asked = before[side];
  const other = otherThan(side);
  let state = stopTimer(before, FIRST_TOKEN[side], effects);
  if (asked.spoke) state = stopTimer(state, "between_tokens", effects);
  if (!SAYS_NOTHING_OF_HEALTH.has(kind)) effects.push({ type: "circuit", side, outcome: "failed" });
  if (retryable && kind !== "request" && !asked.spoke && asked.tries <= state.rules.retries)
    return ask(state, side, effects, asked.tries + 1);
  state = { ...state, [side]: { ...asked, live: false, failed: true } };
  // Both were asked: the other goes on alone.
  if (state[other].live) return other === state.side ? state : { ...state, nextReason: reason };
  // A request that is at fault from the start is the client's to see; where one side took it, that side's answer is worth more.
  const blamed = kind === "request" && state.phase === "choosing";
  if (!blamed && mayTakeOver(state, other)) return switchTo(state, other, reason, effects, false);
  state = silence(state, effects);
  effects.push({ type: "fail", side, kind, reason });
  return { ...state, phase: "failed" };
}

function tick(before: State, timer: TimerName, effects: Effect[]): State {
  const state = { ...before, timers: before.timers.filter((name) => name !== timer) };
  if (timer === "hedge")
    return maySwitch(state, "far") ? ask({ ...state, nextReason: "near_late" }, "far", effects) : state;
  const side = timedSide(timer, state);
  return side === null ? state : timedOut(state, side, effects);
}

/** The side that a timer waits for; null for the hedge's. */
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

/** Ask the other side to write on. What was shown stands until it does. */
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
    { ...state, [side]: { ...UNASKED, attempts: attempt, tries, live: true } },
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

/** Nothing runs any more. */
function silence(before: State, effects: Effect[]): State {
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

/** Whether a side goes on where the other failed. */
function mayTakeOver(state: State, to: Side): boolean {
  if (to === "far") return state.rules.far_takes_over && maySwitch(state, "far");
  // Near was well when it was escalated, and nothing was shown of another side since: it resumes its own answer.
  return (state.rules.near_continues || state.side === "near") && maySwitch(state, "near");
}

const FIRST_TOKEN: Readonly<Record<Side, TimerName>> = { near: "near_first_token", far: "far_first_token" };

function otherThan(side: Side): Side {
  return side === "near" ? "far" : "near";
}

function codePoints(text: string): number {
  return Array.from(text).length;
}
