// The answer machine with any order of events, including late ones: always exactly one answer or one error.

import fc from "fast-check";
import { expect, test } from "vitest";

import type { Rules, State } from "../../src/shared/router/answer_machine.js";
import { begin, step } from "../../src/shared/router/answer_machine.js";
import { runs } from "../exhaustive.js";
import { DEFAULT_RULES } from "./cases.js";
import type { Side } from "../../src/shared/decision/decision.js";
import type { Effect, Event, FailureKind, Switch, TimerName } from "../../src/shared/router/events.js";

interface Tracked {
  readonly side: Side;
  readonly attempt: number;
  live: boolean;
  started: boolean;
  /** The text that it continues, and the text that it has sent since. */
  answer: string;
}

type Act =
  | { readonly type: "token"; readonly ask: number; readonly text: string; readonly toolCall: boolean }
  | { readonly type: "end"; readonly ask: number }
  | { readonly type: "failed"; readonly ask: number; readonly kind: FailureKind; readonly retryable: boolean }
  | { readonly type: "due"; readonly timer: number }
  | { readonly type: "escalate" | "doubt" | "abort" | "start" };

/** A driver that tracks the answer from the effects alone. */
class Driver {
  readonly asks: Tracked[] = [];
  readonly timers = new Set<TimerName>();
  readonly switches: Switch[] = [];
  readonly ends: Effect[] = [];
  shown = "";
  toolCalls = false;
  withdrawn = false;
  aborted = false;
  warmed = false;
  #state: State;

  constructor(
    readonly rules: Rules,
    readonly decided: Side,
    readonly standby: boolean,
  ) {
    this.#state = begin(rules);
    this.send({ type: "start", side: decided, reason: "prefer", standby });
  }

  get over(): boolean {
    return this.aborted || this.ends.length > 0;
  }

  perform(act: Act): void {
    switch (act.type) {
      case "token":
        this.#token(this.#pick(act.ask), act.text, act.toolCall);
        return;
      case "end": {
        const tracked = this.#pick(act.ask);
        const wasLive = tracked.live;
        tracked.live = false;
        this.send({ type: "end", side: tracked.side, attempt: tracked.attempt, finish_reason: "stop" });
        expect(!wasLive || this.over).toBe(true);
        return;
      }
      case "failed": {
        const { kind, retryable } = act;
        const tracked = this.#pick(act.ask);
        const wasLive = tracked.live;
        tracked.live = false;
        const effects = this.send({ type: "failed", side: tracked.side, attempt: tracked.attempt, kind, retryable });
        const again = effects.some((effect) => effect.type === "ask" && effect.side === tracked.side);
        expect(!again || (wasLive && retryable && kind !== "request" && !tracked.started)).toBe(true);
        return;
      }
      case "due": {
        const due = [...this.timers].sort()[act.timer % Math.max(1, this.timers.size)];
        if (due !== undefined) this.fire(due);
        return;
      }
      case "escalate": {
        const nearSpeaks = this.asks.some(({ side, live, started }) => side === "near" && live && started);
        const effects = this.send({ type: "escalate", reason: "escalated_logprob" });
        expect(effects.length === 0 || (nearSpeaks && this.rules.then !== "never")).toBe(true);
        return;
      }
      case "doubt": {
        const nearSpeaks = this.asks.some(({ side, live, started }) => side === "near" && live && started);
        const effects = this.send({ type: "doubt" });
        expect(effects.length === 0 || (nearSpeaks && this.rules.warm === "doubt")).toBe(true);
        return;
      }
      case "start":
        expect(this.send({ type: "start", side: "far", reason: "prefer", standby: true })).toEqual([]);
        return;
      case "abort": {
        const effects = this.send({ type: "abort" });
        this.aborted = true;
        expect(effects.every(({ type }) => type === "cancel" || type === "cancel_timer")).toBe(true);
        return;
      }
      default:
        act satisfies never;
    }
  }

  fire(timer: TimerName): void {
    this.timers.delete(timer);
    this.send({ type: "tick", timer });
  }

  send(event: Event): readonly Effect[] {
    const wasOver = this.over;
    const [state, effects] = step(this.#state, event);
    this.#state = state;
    if (wasOver) expect(effects).toEqual([]);
    for (const effect of effects) {
      expect(this.ends).toEqual([]);
      this.#act(effect);
    }
    if (event.type === "token" && !wasOver) {
      for (const tracked of this.asks)
        tracked.started ||= tracked.live && tracked.side === event.side && tracked.attempt === event.attempt;
    }
    const live = this.asks.filter((tracked) => tracked.live);
    if (this.over || event.type === "abort") {
      expect([live, [...this.timers]]).toEqual([[], []]);
    } else {
      // Until the end a side is tracked, and every running attempt has a timer, so nothing waits forever.
      expect(live.length).toBeGreaterThan(0);
      for (const { side, started } of live)
        expect(this.timers).toContain(started ? "between_tokens" : `${side}_first_token`);
    }
    return effects;
  }

  #pick(ask: number): Tracked {
    // If the decision was far, no side gets a private request.
    return (
      this.asks.at(-1 - (ask % Math.max(1, this.asks.length))) ?? {
        side: "far",
        attempt: 1,
        live: false,
        started: false,
        answer: "",
      }
    );
  }

  #token(tracked: Tracked, text: string, toolCall: boolean): void {
    const { side, attempt } = tracked;
    const isShown = tracked.live && !this.over;
    const effects = this.send({ type: "token", side, attempt, text, tool_call: toolCall });
    const shows = isShown && (text !== "" || toolCall);
    expect(effects.filter(({ type }) => type === "emit")).toEqual(
      shows ? [{ type: "emit", side, text, tool_call: toolCall }] : [],
    );
    // This side writes now, and no other one.
    if (isShown) expect(this.asks.filter((each) => each.live)).toEqual([tracked]);
  }

  #act(effect: Effect): void {
    switch (effect.type) {
      case "ask": {
        const { side, attempt, continue_from } = effect;
        const before = this.asks.filter((tracked) => tracked.side === side);
        expect(attempt).toBe(before.length + 1);
        expect(before.some((tracked) => tracked.live)).toBe(false);
        expect(side === "far" && this.rules.private).toBe(false);
        expect(side === this.decided || (this.standby && !this.rules.private)).toBe(true);
        // A tool would be called twice.
        expect(this.toolCalls).toBe(false);
        // The client may have to pay for the beginning of far's answer.
        expect(side === "far" && before.some((tracked) => tracked.started)).toBe(false);
        // The maximum number of tries for the first part, and for a part that a side resumes or takes over.
        expect(attempt).toBeLessThanOrEqual(2 * (this.rules.retries + 1));
        expect(continue_from === null || (continue_from === this.shown && this.rules.resumes.includes(side))).toBe(
          true,
        );
        this.asks.push({ side, attempt, live: true, started: false, answer: continue_from ?? "" });
        return;
      }
      case "warm":
        // A request that far may not get must not be sent to far for a warm-up either.
        expect([this.warmed, this.rules.private, this.toolCalls]).toEqual([false, false, false]);
        expect(this.standby && this.rules.then !== "never" && this.rules.warm !== "never").toBe(true);
        expect(this.asks.some(({ side }) => side === "far")).toBe(false);
        this.warmed = true;
        return;
      case "cancel": {
        const live = this.asks.filter((tracked) => tracked.side === effect.side && tracked.live);
        expect(live).toHaveLength(1);
        for (const tracked of live) tracked.live = false;
        return;
      }
      case "emit": {
        const [tracked] = this.asks.filter((each) => each.live);
        // The text shown is the text that the writing side knows.
        expect(tracked?.answer).toBe(this.shown);
        expect(effect.side).toBe(this.switches.at(-1)?.side ?? this.decided);
        this.withdrawn = false;
        this.shown += effect.text;
        if (tracked !== undefined) tracked.answer = this.shown;
        this.toolCalls ||= effect.tool_call;
        return;
      }
      case "withdraw":
        expect(this.shown).not.toBe("");
        this.shown = "";
        this.withdrawn = true;
        return;
      case "switch":
        expect(this.toolCalls).toBe(false);
        expect(this.switches.some(({ side }) => side === effect.side)).toBe(false);
        expect(effect.at).toBe(this.withdrawn ? 0 : this.shown === "" ? null : Array.from(this.shown).length);
        this.switches.push(effect);
        return;
      case "finish": {
        const { side, reason, at } = this.switches.at(-1) ?? { side: this.decided, reason: "prefer", at: null };
        expect(effect).toMatchObject({ side, reason, switched_at: at });
        this.ends.push(effect);
        return;
      }
      case "fail":
        this.ends.push(effect);
        return;
      case "timer":
        this.timers.add(effect.name);
        return;
      case "cancel_timer":
        expect(this.timers.delete(effect.name)).toBe(true);
        return;
      case "circuit":
        return;
      default:
        effect satisfies never;
    }
  }
}

const RULES: fc.Arbitrary<Rules> = fc
  .record({
    then: fc.constantFrom("never", "continue", "restart"),
    warm: fc.constantFrom("never", "doubt", "always"),
    near_continues: fc.boolean(),
    far_takes_over: fc.boolean(),
    hedge_after_ms: fc.constantFrom(null, 100),
    retries: fc.nat(2),
    private: fc.boolean(),
    resumes: fc.subarray<Side>(["near", "far"]),
  })
  .map((rules) => ({ ...DEFAULT_RULES, ...rules }));

// The attempt of an event: any attempt so far, the last one first.
const ASK = fc.constantFrom(0, 0, 0, 1, 2, 4);
const ACT: fc.Arbitrary<Act> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      type: fc.constant("token"),
      ask: ASK,
      text: fc.constantFrom("", "a", "é👍"),
      toolCall: fc.nat(9).map((n) => n === 0),
    }),
  },
  { weight: 1, arbitrary: fc.record({ type: fc.constant("end"), ask: ASK }) },
  {
    weight: 6,
    arbitrary: fc.record({
      type: fc.constant("failed"),
      ask: ASK,
      kind: fc.constantFrom("connection", "overloaded", "server", "request", "device"),
      retryable: fc.boolean(),
    }),
  },
  { weight: 4, arbitrary: fc.record({ type: fc.constant("due"), timer: fc.nat(3) }) },
  { weight: 4, arbitrary: fc.constant({ type: "escalate" }) },
  { weight: 2, arbitrary: fc.constant({ type: "doubt" }) },
  { weight: 1, arbitrary: fc.constantFrom<Act>({ type: "abort" }, { type: "start" }) },
);

const WRITES: Act = { type: "token", ask: 0, text: "a", toolCall: false };
/** Near's answer goes wrong, far fails in the middle of its answer, near ends: a sequence that random events seldom produce. */
const TWICE: readonly Act[] = [
  WRITES,
  { type: "doubt" },
  { type: "escalate" },
  WRITES,
  { type: "failed", ask: 0, kind: "server", retryable: false },
  WRITES,
  { type: "end", ask: 0 },
];

test("any order of events gives one answer or one failure", () => {
  const seen = new Set<string>();
  fc.assert(
    fc.property(
      RULES,
      fc.constantFrom<Side>("near", "far"),
      fc.constantFrom(true, true, false),
      fc.array(ACT, { maxLength: 20, size: "max" }),
      (rules, side, standby, acts) => {
        const driver = new Driver(rules, side, standby);
        for (const act of acts) driver.perform(act);
        // If no side sends anything more, the timers end the answer.
        for (let i = 0; i < 20; i++) for (const timer of [...driver.timers].slice(0, 1)) driver.fire(timer);
        expect(driver.aborted || driver.ends.length === 1).toBe(true);
        seen.add(`${driver.ends[0]?.type ?? "aborted"} ${driver.switches.length}`);
        if (driver.warmed) seen.add(`warmed, ${driver.rules.warm}`);
      },
    ),
    {
      numRuns: runs(600, 2500),
      seed: 1,
      examples: [[{ ...DEFAULT_RULES, then: "continue" }, "near", true, [...TWICE]]],
    },
  );
  // The property covers answers of every kind.
  expect([...seen]).toEqual(
    expect.arrayContaining([
      "finish 0",
      "finish 1",
      "finish 2",
      "fail 0",
      "fail 1",
      "aborted 0",
      "warmed, doubt",
      "warmed, always",
    ]),
  );
});
