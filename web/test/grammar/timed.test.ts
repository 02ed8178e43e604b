// The time that an answer may use for its masks, over a constraint that advances a clock.

import { expect, test } from "vitest";
import { RequestError } from "../../src/errors.js";
import { TimedConstraint } from "../../src/grammar/timed.js";

function constraintOf(msPerMask: number): TimedConstraint {
  let now = 0;
  const mask = (): Int32Array<ArrayBuffer> => {
    now += msPerMask;
    return new Int32Array(1);
  };
  return new TimedConstraint(
    { mask, accept: () => undefined, finished: false, complete: false, dispose: () => undefined },
    () => now,
  );
}

function tokensUntilError(constraint: TimedConstraint, most: number): number {
  for (let token = 0; token < most; token++) {
    try {
      constraint.mask();
      constraint.accept(1);
    } catch (error) {
      expect(error).toBeInstanceOf(RequestError);
      expect(String(error)).toContain(`The grammar is too slow: after ${token} tokens`);
      return token;
    }
  }
  return most;
}

test("slow masks end an answer once they have used 10 seconds and 20 ms for each token", () => {
  expect(tokensUntilError(constraintOf(11_000), 10)).toBe(0);
  // Up to the mask after token n, 1,020 (n + 1) ms have passed.
  expect(tokensUntilError(constraintOf(1020), 100)).toBe(9);
});

test("an answer of any length may use 20 ms for each mask", () => {
  expect(tokensUntilError(constraintOf(20), 5000)).toBe(5000);
});
