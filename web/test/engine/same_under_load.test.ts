// The same request gives the same tokens alone and under load: greedy and seeded, penalized, biased, constrained, after a
// preemption and after a lost device, beside others that arrive and end.

import { expect, test } from "vitest";

import type { Constraint, SamplingOptions, TokenRequest } from "../../src/engine/request.js";
import { answer, engineOn, onePool } from "./engine_set_up.js";
import { VOCAB } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";
import { mulberry32 } from "./mulberry32.js";

const LIMITS = { tokens: 24, sequences: 6, groups: onePool(18), pageSize: 4, context: 64, vocabSize: VOCAB };
const SAMPLINGS: readonly SamplingOptions[] = [
  {},
  { temperature: 0.8 },
  { repetitionPenalty: 1.3 },
  { temperature: 0.7, frequencyPenalty: 0.5, presencePenalty: 0.2 },
  { logitBias: new Map([[3, 4]]) },
  { temperature: 1, presencePenalty: 0.4, logitBias: new Map([[5, 3]]) },
];

/** Allows the tokens of one parity, and the other parity for the next token: its state depends on all tokens so far. */
function alternating(): Constraint {
  let seen = 0;
  return {
    mask: () => Int32Array.of(seen % 2 === 0 ? 0b0101_0101_0101_0100 : 0b1010_1010_1010_1010),
    accept: (id) => (seen += id % 2 === seen % 2 ? 1 : NaN),
    finished: false,
    complete: false,
    dispose: () => undefined,
  };
}

/** Each call returns the same requests, with new constraints. Every fourth has the prompt of the one before it. */
function mixedRequests(count: number): readonly TokenRequest[] {
  const draw = mulberry32(count);
  const below = (end: number): number => Math.floor(draw() * end);
  let promptIds: readonly number[] = [];
  return Array.from({ length: count }, (_, index) => {
    const length = [1, 3, 4, 9, 17, 30][below(6)] ?? 1;
    const fresh = Array.from({ length }, () => 1 + below(VOCAB - 1));
    promptIds = index % 4 === 3 ? promptIds : fresh;
    return {
      promptIds,
      maxTokens: 8 + below(12),
      priority: below(3),
      sampling: { ...SAMPLINGS[index % SAMPLINGS.length], seed: below(2 ** 32) },
      constraint: index % 5 === 4 ? alternating() : undefined,
    };
  });
}

test.each(["preempted", "lost"].flatMap((how) => [0, 6, 9].map((states) => [how, states] as const)))(
  "60 mixed requests, %s, with %i slots for states, are answered as each alone",
  async (how, states) => {
    const alone: (readonly number[])[] = [];
    for (const request of mixedRequests(60)) alone.push((await answer(engineOn(new FakeRunner(LIMITS)), request)).ids);
    expect(alone.flat().length).toBeGreaterThan(200);
    // A device that is lost after some steps, again and again; and pages for fewer sequences than may run.
    const runner = (): FakeRunner => new FakeRunner({ ...LIMITS, states }, how === "lost" ? 7 : Infinity);
    const engine = engineOn(runner(), () => Promise.resolve(runner()));
    // Tuning holds a page, and a slot for states.
    if (how === "preempted") expect(engine.lendPages()).toHaveLength(states > 0 ? 2 : 1);
    const together = await Promise.all(mixedRequests(60).map((request) => answer(engine, request)));
    expect(together.map(({ ids }) => ids)).toEqual(alone);
    const { preemptions, recoveries } = engine.counts;
    expect(how === "lost" ? recoveries : preemptions).toBeGreaterThan(5);
  },
);
