// Constraints and logit processors of requests to the token engine, on the fake model.

import { expect, test } from "vitest";

import type { Constraint } from "../../src/engine/request.js";
import { LIMITS, OTHERS, PROMPT, answer, engineOn } from "./engine_set_up.js";
import { STOP, answerOf, logprobsOf } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";

test("a constraint's mask applies to each token, and its end ends the answer", async () => {
  const accepted: number[] = [];
  let disposed = 0;
  const constraint: Constraint = {
    // Allows only even tokens without the stop token.
    mask: () => Int32Array.of(0b0101_0101_0101_0100),
    accept: (id) => accepted.push(id),
    complete: false,
    get finished() {
      return accepted.length === 4;
    },
    dispose: () => disposed++,
  };
  const { ids, completion } = await answer(engineOn(new FakeRunner(LIMITS)), { constraint, maxTokens: 20 });
  expect(ids).toHaveLength(4);
  expect(ids.every((id) => id % 2 === 0 && id > 0)).toBe(true);
  expect(accepted).toEqual(ids);
  expect([completion.finishReason, disposed]).toEqual(["stop", 1]);
});

test.each([
  [true, "stop"],
  [false, "length"],
] as const)("at maxTokens an answer whose constraint is complete: %s ends with %s", async (complete, reason) => {
  const constraint: Constraint = {
    mask: () => null,
    accept: () => undefined,
    finished: false,
    complete,
    dispose: () => undefined,
  };
  const { ids, completion } = await answer(engineOn(new FakeRunner(LIMITS)), { constraint, maxTokens: 3 });
  expect([ids.length, completion.finishReason]).toEqual([3, reason]);
});

test.each(["mask", "accept"] as const)("a constraint whose %s fails ends only its own answer", async (what) => {
  const fail = (): never => {
    throw new Error("the constraint failed");
  };
  const constraint: Constraint = {
    mask: () => null,
    accept: () => undefined,
    finished: false,
    complete: false,
    dispose: () => undefined,
    [what]: fail,
  };
  const engine = engineOn(new FakeRunner(LIMITS));
  const [failed, other] = await Promise.allSettled([answer(engine, { constraint }), answer(engine)]);
  expect(failed).toMatchObject({ status: "rejected", reason: { message: "the constraint failed" } });
  expect(other).toMatchObject({ status: "fulfilled", value: { ids: answerOf(PROMPT, 6, 64).tokens } });
});

/** A logit processor that forces ``tokens`` one after the other. */
function forcing(
  tokens: readonly number[],
  seen: (number | readonly number[])[],
): (logitsOrToken: Float32Array | number) => void {
  let next = 0;
  return (logitsOrToken) => {
    seen.push(typeof logitsOrToken === "number" ? logitsOrToken : [...logitsOrToken]);
    if (typeof logitsOrToken !== "number") logitsOrToken[tokens[next++] ?? STOP] = 100;
  };
}

test("a logit processor receives logits and each sampled token, and does not change other answers", async () => {
  const engine = engineOn(new FakeRunner(LIMITS));
  const seen: (number | readonly number[])[] = [];
  const [forced, ...others] = await Promise.all([
    answer(engine, { promptIds: [3, 4], logitProcessor: forcing([7, 9], seen) }),
    ...OTHERS.map((promptIds) => answer(engine, { promptIds, promptLogprobs: 2, logprobs: 1 })),
  ]);
  expect([forced.ids, forced.completion.finishReason]).toEqual([[7, 9], "stop"]);
  const logits = (tokens: readonly number[]): readonly number[] => [...Float32Array.from(logprobsOf(tokens))];
  expect(seen).toEqual([logits([3, 4]), 7, logits([3, 4, 7]), 9, logits([3, 4, 7, 9]), STOP]);
  expect(others.map(({ ids }) => ids)).toEqual(OTHERS.map((prompt) => answerOf(prompt, 6, 64).tokens));
});

test("a logit processor that starts or ends while steps are in flight does not change other answers", async () => {
  const engine = engineOn(new FakeRunner(LIMITS));
  let isOver = false;
  const long = answer(engine, { maxTokens: 30 }).finally(() => (isOver = true));
  for (let round = 0; round < 3; round++) {
    expect(isOver).toBe(false);
    expect((await answer(engine, { promptIds: [round + 1], logitProcessor: forcing([7], []) })).ids).toEqual([7]);
  }
  expect((await long).ids).toEqual(answerOf(PROMPT, 30, 64).tokens);
});

test.each([0, 1])("a logit processor that fails at call %i ends only its own answer", async (failing) => {
  const engine = engineOn(new FakeRunner(LIMITS));
  let calls = 0;
  const logitProcessor = (): void => {
    if (calls++ === failing) throw new Error("no such token");
  };
  const failed = expect(answer(engine, { promptIds: [3, 4], logitProcessor })).rejects.toThrow("no such token");
  expect((await answer(engine)).ids).toEqual(answerOf(PROMPT, 6, 64).tokens);
  await failed;
  expect(calls).toBe(failing + 1);
});
