// The same request gives the same tokens alone and under load: greedy and seeded, penalized, biased, constrained, after a
// preemption and after a lost device, beside others that arrive and end.

import fc from "fast-check";
import { expect, test } from "vitest";

import type { Batch } from "../../src/runtime/batch.js";
import { answer, engineOn, onePool } from "./engine_set_up.js";
import { VOCAB } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";
import { mixedRequests } from "./mixed_requests.js";
import { mulberry32 } from "./mulberry32.js";

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

/** A runner whose chunk changes with each step, as when the tuner chooses another one. */
class ChangingRunner extends FakeRunner {
  readonly #draw: () => number;

  constructor(states: number, seed: number) {
    super({ ...LIMITS, states });
    this.#draw = mulberry32(seed);
    this.#change();
  }

  override submit(...[batch, options]: Parameters<FakeRunner["submit"]>): ReturnType<FakeRunner["submit"]> {
    expect(batch.token_ids.length).toBeLessThanOrEqual(this.chunk);
    this.#change();
    return super.submit(batch, options);
  }

  /** A step has a row of each sequence. */
  #change(): void {
    this.chunk = LIMITS.sequences + Math.floor(this.#draw() * (1 + LIMITS.tokens - LIMITS.sequences));
  }
}

test("40 mixed requests are answered as each alone, whatever the chunks are and however they change", async () => {
  const alone: (readonly number[])[] = [];
  for (const request of mixedRequests(40)) alone.push((await answer(engineOn(new FakeRunner(LIMITS)), request)).ids);
  await fc.assert(
    fc.asyncProperty(fc.integer(), fc.constantFrom(0, 9), async (seed, states) => {
      const runner = new ChangingRunner(states, seed);
      const engine = engineOn(runner);
      const together = await Promise.all(mixedRequests(40).map((request) => answer(engine, request)));
      expect(together.map(({ ids }) => ids)).toEqual(alone);
      const lengths = (batches: readonly Batch[]): number => new Set(batches.map((each) => each.token_ids.length)).size;
      expect(lengths(runner.batches)).toBeGreaterThan(5);
    }),
    { numRuns: 20 },
  );
});

test("a larger chunk takes fewer steps for a prompt", async () => {
  const steps: number[] = [];
  for (const chunk of [6, 12, 24]) {
    const runner = new FakeRunner(LIMITS);
    runner.chunk = chunk;
    await answer(engineOn(runner), { promptIds: new Array<number>(48).fill(3), maxTokens: 1 });
    steps.push(runner.batches.length);
  }
  expect(steps).toEqual([8, 4, 2]);
});
