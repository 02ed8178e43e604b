import { expect, test } from "vitest";

import { logprobsOf, logSumExp } from "../src/runtime/log_sum_exp.js";

test("log-probabilities are exact however large the logits are", () => {
  for (const offset of [0, -40, 2 ** 24, 1e30]) {
    const logprob = logprobsOf(Float32Array.of(offset, offset, offset, offset));
    expect(logprob(2)).toBeCloseTo(-Math.log(4), 12);
  }
  expect(logprobsOf(Float32Array.of(0, -Infinity))(1)).toBe(-Infinity);
});

test("the log-sum-exp of logits does not overflow, and no logits have none", () => {
  expect(logSumExp(Float32Array.of(1000, 1000))).toBeCloseTo(1000 + Math.log(2), 9);
  expect(logSumExp(new Float32Array())).toBe(-Infinity);
  expect(logSumExp(Float32Array.of(1, NaN))).toBeNaN();
});
