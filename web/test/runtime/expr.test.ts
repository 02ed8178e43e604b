import fc from "fast-check";
import { expect, test } from "vitest";

import type { Condition, Expr } from "../../src/runtime/manifest.js";
import { elements, evaluate, holds, outcomes } from "../../src/runtime/expr.js";

const DIMS = { S: 7, R: 1, T: 300 };

const { expr } = fc.letrec<{ expr: Expr }>((tie) => ({
  expr: fc.oneof(
    { depthSize: "small" },
    fc.integer({ min: 0, max: 9 }),
    fc.constantFrom(...Object.keys(DIMS)),
    fc.tuple(fc.constantFrom("add", "sub", "mul", "min", "max"), tie("expr"), tie("expr")),
    fc.tuple(fc.constant("ceildiv"), tie("expr"), fc.integer({ min: 1, max: 65 })),
  ),
}));

/** The same value in exact arithmetic. */
function naive(expr: Expr): bigint {
  if (typeof expr === "number") return BigInt(expr);
  if (typeof expr === "string") return BigInt(DIMS[expr as keyof typeof DIMS]);
  const [operator, a, b] = [expr[0], naive(expr[1]), naive(expr[2])];
  if (operator === "add") return a + b;
  if (operator === "sub") return a - b;
  if (operator === "mul") return a * b;
  if (operator === "min") return a < b ? a : b;
  if (operator === "max") return a > b ? a : b;
  const quotient = a / b;
  return quotient * b < a ? quotient + 1n : quotient;
}

test("the value of any expression equals that of exact arithmetic", () => {
  fc.assert(
    fc.property(expr, (expression) => {
      const exact = naive(expression);
      fc.pre(exact > -(2n ** 48n) && exact < 2n ** 48n);
      expect(evaluate(expression, DIMS)).toBe(Number(exact));
    }),
  );
});

test("ceildiv rounds up, also below zero", () => {
  expect(evaluate(["ceildiv", 65, 64], {})).toBe(2);
  expect(evaluate(["ceildiv", -3, 2], {})).toBe(-1);
  expect(evaluate(["ceildiv", 0, 64], {})).toBe(0);
});

test("a condition compares values, joins with and, and is true if it is null", () => {
  expect(holds(null, DIMS)).toBe(true);
  expect(holds(["and", ["<=", "S", 7], [">", "T", ["mul", "S", 2]]], DIMS)).toBe(true);
  expect(holds(["and", ["<", "S", 7], ["==", "R", 1]], DIMS)).toBe(false);
  expect(holds([">=", "R", 2], DIMS)).toBe(false);
});

test("a shape's elements are the product of its sizes", () => {
  expect(elements(["S", 2, ["add", "R", 1]], DIMS)).toBe(28);
  expect(elements([], DIMS)).toBe(1);
});

test("an unknown dim, operator or comparison is named", () => {
  expect(() => evaluate("Q", DIMS)).toThrow("dim 'Q' is not known here; known: S, R, T");
  expect(() => evaluate(["toString", 1, 2], DIMS)).toThrow("operator 'toString' is not known");
  expect(() => holds(["!=", 1, 2], DIMS)).toThrow("comparison '!=' is not known");
});

const { condition } = fc.letrec<{ condition: Condition }>((tie) => ({
  condition: fc.oneof(
    { depthSize: "small" },
    fc.constant(null),
    fc.tuple(fc.constantFrom("<=", "<", ">=", ">", "=="), expr, expr),
    fc.tuple(fc.constant("and"), tie("condition"), tie("condition")),
  ),
}));

test("a condition is true for no batch, or for every batch within the capacity, if its outcomes say so", () => {
  const dims = fc.record({ S: fc.nat(DIMS.S), R: fc.nat(DIMS.R), T: fc.nat(DIMS.T) });
  const seen = new Set<string>();
  fc.assert(
    fc.property(condition, dims, (when, within) => {
      const { some, every } = outcomes(when, DIMS);
      seen.add(`${some} ${every}`);
      if (!some) expect(holds(when, within)).toBe(false);
      if (every) expect(holds(when, within)).toBe(true);
    }),
    { numRuns: 500 },
  );
  expect([...seen].sort()).toEqual(["false false", "true false", "true true"]);
});

test.each([
  [["<=", "R", 4], { R: 4 }, "every"],
  [["<=", "R", 4], { R: 5 }, "some"],
  [[">", "S", 256], { S: 256 }, "none"],
  [[">", "S", 256], { S: 257 }, "some"],
  [["==", ["max", ["sub", "S", "B"], 7], 7], { S: 64, B: 4 }, "some"],
  [[">", ["ceildiv", "S", "B"], 4], { S: 64, B: 4 }, "some"],
  [["and", ["<=", "S", 64], [">", ["mul", "S", "T"], 640]], { S: 64, T: 10 }, "none"],
] as const)("%j has the outcomes of %j: %s", (when, capacity, expected) => {
  const { some, every } = outcomes(when, capacity);
  expect(every ? "every" : some ? "some" : "none").toBe(expected);
});
