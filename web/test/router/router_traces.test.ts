// The answer machine and the watch, against traces that all languages share.

import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";

import type { Side } from "../../src/shared/decision/decision.js";
import { parsePolicy } from "../../src/shared/decision/policy.js";
import type { AnswerFacts, Rules } from "../../src/shared/router/answer_machine.js";
import { begin, rulesOf, step } from "../../src/shared/router/answer_machine.js";
import { CHAT, DEFAULT_RULES } from "./cases.js";
import type { ContinuedParams } from "../../src/shared/router/continuation.js";
import { continuesAsTokens, setsTemplateVariables } from "../../src/shared/router/continuation.js";
import type { Effect, EscalationReason, Event, Fail } from "../../src/shared/router/events.js";
import type { Failure, SideError } from "../../src/shared/router/failures.js";
import { failError, failureOf } from "../../src/shared/router/failures.js";
import type { Usage } from "../../src/shared/router/usage.js";
import { totalUsage } from "../../src/shared/router/usage.js";
import type { WatchRules } from "../../src/shared/router/watch.js";
import { Watch } from "../../src/shared/router/watch.js";

interface Given {
  readonly traces: readonly {
    readonly name: string;
    readonly rules: Partial<Rules>;
    readonly steps: readonly { readonly event: Event; readonly effects: readonly Effect[] }[];
  }[];
  readonly watch: readonly {
    readonly name: string;
    readonly rules: Partial<WatchRules>;
    readonly tokens: readonly (readonly [string, number | null, readonly number[] | null])[];
    readonly reasons: readonly (EscalationReason | null)[];
    readonly doubts: readonly boolean[];
  }[];
  readonly failures: readonly {
    readonly name: string;
    readonly side: Side;
    readonly tries: number;
    readonly error: SideError;
    readonly failure: Failure;
  }[];
  readonly fails: readonly { readonly fail: Pick<Fail, "side" | "reason">; readonly message: string }[];
  readonly rules: readonly {
    readonly name: string;
    readonly facts: Partial<AnswerFacts>;
    readonly resumes: readonly Side[];
    readonly warm: string;
    readonly json: Rules["json"];
  }[];
  readonly continuation: readonly {
    readonly name: string;
    readonly params: ContinuedParams;
    readonly tokens: boolean;
    readonly variables: boolean;
  }[];
  readonly usage: readonly {
    readonly name: string;
    readonly usage: Usage | null;
    readonly counted: number;
    readonly earlier: number;
    readonly total: Usage;
  }[];
}

const GIVEN = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/router_traces.json", import.meta.url), "utf8"),
) as Given;
const BASE = { ...DEFAULT_RULES, near_first_token_ms: 900, far_first_token_ms: 700, between_tokens_ms: 500 };
const UNWATCHED: WatchRules = {
  window_tokens: 8,
  min_mean_logprob: null,
  max_mean_entropy: null,
  repetition: null,
  max_tokens: null,
};

describe("the answer machine", () => {
  test.each(GIVEN.traces)("$name", ({ rules, steps }) => {
    let state = begin({ ...BASE, ...rules });
    for (const { event, effects } of steps) {
      const [next, given] = step(state, event);
      expect(given).toEqual(effects);
      state = next;
    }
  });
});

describe("what else both drivers are told", () => {
  const state = begin(BASE);

  test.each(GIVEN.failures)("of a failure: $name", ({ side, tries, error, failure }) => {
    const asked = { ...state, [side]: { ...state[side], tries } };
    expect(failureOf(side, error, asked, 0)).toEqual(failure);
    // With any other random number the wait is at most twice as long.
    expect(failureOf(side, error, asked, 1).wait_ms).toBe(Math.max(50 * 2 ** tries, failure.wait_ms));
  });

  test.each(GIVEN.fails)("of an error that no side reported: $fail.reason", ({ fail, message }) => {
    expect(failError(fail, state)).toMatchObject({ code: "unavailable", message, details: { code: fail.reason } });
  });

  test.each(GIVEN.rules)("of a request: $name", ({ facts, resumes, warm, json }) => {
    const policy = parsePolicy({ version: 1, mode: "prefer-near" });
    expect(rulesOf(policy, { ...CHAT, ...facts })).toMatchObject({ resumes, warm, json });
    const unwatched = parsePolicy({ version: 1, mode: "prefer-near", escalation: { failing_schema: false } });
    expect(rulesOf(unwatched, { ...CHAT, ...facts }).json).toBeNull();
  });

  test.each(GIVEN.continuation)("of a continued chat: $name", ({ params, tokens, variables }) => {
    expect([continuesAsTokens(params), setsTemplateVariables(params)]).toEqual([tokens, variables]);
  });

  test.each(GIVEN.usage)("of usage: $name", ({ usage, counted, earlier, total }) => {
    expect(totalUsage(usage, counted, earlier)).toEqual(total);
  });
});

describe("the watch", () => {
  test.each(GIVEN.watch)("$name", ({ rules, tokens, reasons, doubts }) => {
    const watch = new Watch({ ...UNWATCHED, ...rules });
    const seen = tokens.map(([text, logprob, alternatives]) => [
      watch.add({ text, logprob, alternatives }),
      watch.doubts,
    ]);
    expect(seen).toEqual(reasons.map((reason, index) => [reason, doubts[index]]));
  });

  test("the entropy of an impossible token is zero", () => {
    const watch = new Watch({ ...UNWATCHED, window_tokens: 1, min_mean_logprob: -50, max_mean_entropy: 0.1 });
    expect(watch.add({ text: "a", logprob: -Infinity, alternatives: [0, -Infinity] })).toBe("escalated_logprob");
    expect(watch.add({ text: "a", logprob: 0, alternatives: [0, -Infinity] })).toBeNull();
  });
});
