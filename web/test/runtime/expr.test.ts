import fc from "fast-check";
import { expect, test } from "vitest";

import type { Expr } from "../../src/runtime/manifest.js";
import { elements, evaluate, holds } from "../../src/runtime/expr.js";

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
