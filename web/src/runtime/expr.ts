// Evaluates the size and condition expressions of the manifest for given values of the dims.
//
// Dims: S new tokens, B sequences, R sampled rows, T longest context, L listed pages, P pages of the pool, LW and PW
// those of the second page group, N sequence slots, A: R if the logits of any row are adjusted, else 0. W: R if
// alternatives are requested, else 0. DR: R if any row has a temperature, else 0. If the model's own heads guess tokens:
// PD pages of theirs, PH pages of the rows that they read, and H of the new tokens' rows are kept for them, else 0. F
// features of pictures; where they are made, of V patches of I tiles. LS and PS are listed pages and pages of windows of
// sound, which the page does not read yet.

import { BundleError } from "../errors.js";
import type { Condition, Expr } from "./manifest.js";

export type Dims = Readonly<Record<string, number>>;

// Adding 0 turns a negative zero into zero.
const OPERATORS: Readonly<Record<string, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b + 0,
  ceildiv: (a, b) => Math.ceil(a / b) + 0,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
};

const COMPARISONS: Readonly<Record<string, (a: number, b: number) => boolean>> = {
  "<=": (a, b) => a <= b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  ">": (a, b) => a > b,
  "==": (a, b) => a === b,
};

export function isOperator(name: unknown): boolean {
  return Object.hasOwn(OPERATORS, name as string);
}

export function isComparison(name: unknown): boolean {
  return Object.hasOwn(COMPARISONS, name as string);
}

/** The value of a size expression. Throws BundleError for an unknown dim or operator. */
export function evaluate(expr: Expr, dims: Dims): number {
  if (typeof expr === "number") return expr;
  if (typeof expr === "string") {
    const value = Object.hasOwn(dims, expr) ? dims[expr] : undefined;
    if (value === undefined) throw unknown("dim", expr, dims);
    return value;
  }
  const [operator, left, right] = expr;
  return known(OPERATORS, "operator", operator)(evaluate(left, dims), evaluate(right, dims));
}

/** Whether a condition is true. Throws BundleError for an unknown dim, operator or comparison. */
export function holds(condition: Condition, dims: Dims): boolean {
  if (condition === null) return true;
  const [comparison, left, right] = condition;
  if (comparison === "and") return holds(left as Condition, dims) && holds(right as Condition, dims);
  return known(COMPARISONS, "comparison", comparison)(evaluate(left as Expr, dims), evaluate(right as Expr, dims));
}

/**
 * Whether a condition can be true for a batch whose dims are at most those of ``capacity``, and whether it is true for
 * all of them. Throws BundleError as `holds` does.
 */
export function outcomes(condition: Condition, capacity: Dims): { readonly some: boolean; readonly every: boolean } {
  if (condition === null) return { some: true, every: true };
  const [comparison, left, right] = condition;
  if (comparison === "and") {
    const both = [left, right].map((part) => outcomes(part as Condition, capacity));
    return { some: both.every(({ some }) => some), every: both.every(({ every }) => every) };
  }
  const compare = known(COMPARISONS, "comparison", comparison);
  const found = atEnds(compare, range(left as Expr, capacity), range(right as Expr, capacity));
  // Ranges may meet between their ends.
  return { some: comparison === "==" || found.includes(true), every: !found.includes(false) };
}

/** The smallest and the largest value of an expression whose dims are at most those of ``capacity``. */
function range(expr: Expr, capacity: Dims): readonly number[] {
  if (typeof expr === "number") return [expr];
  if (typeof expr === "string") return [0, evaluate(expr, capacity)];
  const [operator, left, right] = expr;
  // Every operator is monotonic in each of its arguments.
  const ends = atEnds(known(OPERATORS, "operator", operator), range(left, capacity), range(right, capacity));
  // A divisor may be zero, and then nothing is known.
  return ends.every(Number.isFinite) ? [Math.min(...ends), Math.max(...ends)] : [-Infinity, Infinity];
}

function atEnds<Value>(
  call: (a: number, b: number) => Value,
  left: readonly number[],
  right: readonly number[],
): Value[] {
  return left.flatMap((a) => right.map((b) => call(a, b)));
}

/** The number of elements of a shape. */
export function elements(shape: readonly Expr[], dims: Dims): number {
  return shape.reduce<number>((product, size) => product * evaluate(size, dims), 1);
}

function known<T>(table: Readonly<Record<string, T>>, what: string, name: string): T {
  const entry = Object.hasOwn(table, name) ? table[name] : undefined;
  if (entry === undefined) throw unknown(what, name, table);
  return entry;
}

function unknown(what: string, name: string, table: Readonly<Record<string, unknown>>): BundleError {
  const names = Object.keys(table).join(", ");
  return new BundleError(
    `manifest.json: ${what} '${name}' is not known here; known: ${names}; use a newer @nearfar/web`,
  );
}
