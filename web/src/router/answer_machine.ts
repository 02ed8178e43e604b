// The answer machine: what becomes of one answer that two sides may write.
//
// begin(rules) is the first state; step(state, event) gives the next one and what the driver is to do, in order. Pure: it knows neither time nor HTTP
// nor devices, only the events that it is told. server_fallback/router/answer_machine.py is the same machine, and
// tests/conformance/router_traces.json holds both to the same effects.
//
// choosing --first token--> running --another side is asked--> switching --its first token--> running --> done
//     |                        |                                   |                             |
//     +------------------------+------------- failed / aborted ----+-----------------------------+

import type { Effect, Event, Side, SwitchReason, TimerName } from "./events.js";

export type Phase = "choosing" | "running" | "switching" | "done" | "failed" | "aborted";

/** What the policy says of a running answer, and what is known of the request. Times in milliseconds. */
export interface Rules {
  /** What an escalation does. */
  readonly then: "never" | "continue" | "restart";
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
  readonly standby: boolean;
  readonly near: Asked;
  readonly far: Asked;
  /** The sides that were switched to. */
  readonly switches: readonly Side[];
  /** Why a side other than `side` would write. */
  readonly nextReason: SwitchReason | null;
  /** It starts anew. */
  readonly restart: boolean;
  readonly timers: readonly TimerName[];
}

const UNASKED: Asked = { attempts: 0, tries: 0, live: false, spoke: false, failed: false };

export function begin(rules: Rules): State {
  return {
    rules, phase: "choosing", side: null, reason: "", switchedAt: null, text: "", toolCalls: false, standby: false,
    near: UNASKED, far: UNASKED, switches: [], nextReason: null, restart: false, timers: [],
  }; // prettier-ignore
}

/** The state after an event, and what is to be done. What a side says that no longer runs, and all that comes after the end, does nothing. */
export function step(state: State, event: Event): readonly [State, readonly Effect[]] {
  throw new Error(`${state.phase} ${event.type}`);
}
