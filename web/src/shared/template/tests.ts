// Jinja2's tests, such as `x is defined`.

import { binary } from "./operators.js";
import { bind } from "./parameters.js";
import { hasCase } from "./text.js";
import type { Named, Value } from "./values.js";
import {
  Callable,
  Dict,
  Loop,
  Markup,
  Namespace,
  Range,
  TemplateError,
  Tuple,
  Undefined,
  compare,
  contains,
  equal,
  isIterable,
  isList,
  isNumber,
  str,
  textOf,
} from "./values.js";

type Test = readonly [parameters: string, test: (value: Value, other: Value) => boolean];

const remainder = (value: Value, by: Value): Value => binary("%", value, by);
const isSequence = (value: Value): boolean =>
  textOf(value) !== undefined ||
  isList(value) ||
  value instanceof Tuple ||
  value instanceof Dict ||
  value instanceof Range ||
  value instanceof Undefined;

const equals: Test = ["value other |", equal];
const differs: Test = ["value other |", (value, other) => !equal(value, other)];
const less: Test = ["value other |", (value, other) => compare(value, other) < 0];
const lessOrEqual: Test = ["value other |", (value, other) => compare(value, other) <= 0];
const greater: Test = ["value other |", (value, other) => compare(value, other) > 0];
const greaterOrEqual: Test = ["value other |", (value, other) => compare(value, other) >= 0];

export const TESTS: Readonly<Record<string, Test>> = {
  "!=": differs,
  "<": less,
  "<=": lessOrEqual,
  "==": equals,
  ">": greater,
  ">=": greaterOrEqual,
  boolean: ["value", (value) => typeof value === "boolean"],
  callable: ["value |", (value) => value instanceof Callable || value instanceof Loop || value instanceof Undefined],
  defined: ["value", (value) => !(value instanceof Undefined)],
  divisibleby: ["value num", (value, by) => equal(remainder(value, by), 0n)],
  eq: equals,
  equalto: equals,
  escaped: ["value", (value) => value instanceof Markup],
  even: ["value", (value) => equal(remainder(value, 2n), 0n)],
  false: ["value", (value) => value === false],
  float: ["value", (value) => typeof value === "number"],
  ge: greaterOrEqual,
  greaterthan: greater,
  gt: greater,
  in: ["value seq", (value, container) => contains(container, value)],
  integer: ["value", (value) => typeof value === "bigint"],
  iterable: ["value", isIterable],
  le: lessOrEqual,
  lessthan: less,
  lower: ["value", (value) => hasCase(str(value), true)],
  lt: less,
  mapping: ["value", (value) => value instanceof Dict],
  ne: differs,
  none: ["value", (value) => value === null],
  number: ["value", isNumber],
  odd: ["value", (value) => equal(remainder(value, 2n), 1n)],
  sameas: ["value other", same],
  sequence: ["value", isSequence],
  string: ["value", (value) => textOf(value) !== undefined],
  true: ["value", (value) => value === true],
  undefined: ["value", (value) => value instanceof Undefined],
  upper: ["value", (value) => hasCase(str(value), false)],
};

/** Python may or may not keep one object for equal numbers and texts; the singletons are certain. */
function same(value: Value, other: Value): boolean {
  return value instanceof Namespace || typeof value !== "object" || value === null
    ? typeof value === typeof other && Object.is(value, other)
    : value === other;
}

export function callTest(name: string, value: Value, args: readonly Value[], named: Named): boolean {
  const test = Object.hasOwn(TESTS, name) ? TESTS[name] : undefined;
  if (test === undefined) throw new TemplateError(`No test named '${name}'.`);
  const [given = null, other = null] = bind(name, test[0], [value, ...args], named);
  return test[1](given, other);
}
