// The same request gives the same tokens alone and under load: greedy and seeded, penalized, biased, constrained, after a
// preemption and after a lost device, beside others that arrive and end.

import { expect, test } from "vitest";

import { answer, engineOn, onePool } from "./engine_set_up.js";
import { VOCAB } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";
import { mixedRequests } from "./mixed_requests.js";

const LIMITS = { tokens: 24, sequences: 6, groups: onePool(18), pageSize: 4, context: 64, vocabSize: VOCAB };

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
