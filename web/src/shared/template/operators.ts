// Python's operators on values: arithmetic, concatenation, repetition, items and slices.

import { quotient } from "./digits.js";
import { formatPercent } from "./format.js";
import { points } from "./text.js";
import type { Value } from "./values.js";
import {
  Dict,
  Loop,
  Markup,
  Range,
  TemplateError,
  Tuple,
  Undefined,
  Unsupported,
  isList,
  isNumber,
  numeric,
  real,
  str,
  textOf,
  typeName,
} from "./values.js";

// A template is untrusted: no value may take the memory of a page.
const MAX_ITEMS = 2 ** 24;
const MAX_BITS = 2 ** 15;

export function binary(operator: string, left: Value, right: Value): Value {
  if (operator === "%" && textOf(left) !== undefined) return formatPercent(left, right);
  if (left instanceof Undefined) return left.fail();
  if (right instanceof Undefined) return right.fail();
  if (isNumber(left) && isNumber(right)) return arithmetic(operator, numeric(left), numeric(right));
  if (operator === "+") return concatenated(left, right);
  if (operator === "*") return isNumber(left) ? repeated(right, left) : repeated(left, right);
  throw refused(operator, left, right);
}

function refused(operator: string, left: Value, right: Value): TemplateError {
  return new TemplateError(`unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
}

function concatenated(left: Value, right: Value): Value {
  const [text, other] = [textOf(left), textOf(right)];
  if (text !== undefined && other !== undefined) {
    if (left instanceof Markup || right instanceof Markup) return new Markup(escaped(left).text + escaped(right).text);
    return text + other;
  }
  if (isList(left) && isList(right)) return [...left, ...right];
  if (left instanceof Tuple && right instanceof Tuple) return new Tuple([...left.items, ...right.items]);
  throw refused("+", left, right);
}

/** Jinja's escape(). */
export function escaped(value: Value): Markup {
  if (value instanceof Markup) return value;
  const names: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;" };
  return new Markup(str(value).replace(/[&<>'"]/g, (character) => names[character] ?? ""));
}

function repeated(value: Value, times: Value): Value {
  const items = isList(value) ? value : value instanceof Tuple ? value.items : undefined;
  const text = textOf(value);
  if ((items === undefined && text === undefined) || !isNumber(times) || typeof times === "number")
    throw refused("*", value, times);
  const count = Math.max(0, Number(times));
  if (count * (items ?? text ?? "").length > MAX_ITEMS) throw new Unsupported("a repeated value is too long");
  if (items === undefined) {
    const result = (text ?? "").repeat(count);
    return value instanceof Markup ? new Markup(result) : result;
  }
  const many = Array.from({ length: count }, () => items).flat();
  return value instanceof Tuple ? new Tuple(many) : many;
}

function arithmetic(operator: string, left: bigint | number, right: bigint | number): Value {
  if (typeof left === "bigint" && typeof right === "bigint") return integers(operator, left, right);
  return floats(operator, real(left), real(right));
}

function integers(operator: string, left: bigint, right: bigint): Value {
  switch (operator) {
    case "+":
      return left + right;
    case "-":
      return left - right;
    case "*":
      return left * right;
    case "/":
      if (right === 0n) throw new TemplateError("division by zero");
      return divided(left, right);
    case "//":
    case "%": {
      if (right === 0n) throw new TemplateError("integer division or modulo by zero");
      const rest = left % right;
      // JavaScript rounds toward zero, Python down.
      const below = rest !== 0n && rest < 0n !== right < 0n;
      return operator === "%" ? (below ? rest + right : rest) : left / right - (below ? 1n : 0n);
    }
    default:
      if (right < 0n) return floats(operator, real(left), real(right));
      if (left !== 0n && Number(right) * left.toString(2).length > MAX_BITS)
        throw new Unsupported("a power is too large");
      return left ** right;
  }
}

function divided(left: bigint, right: bigint): number {
  const result = quotient(left, right);
  if (result === undefined) throw new Unsupported("a quotient of ints that is nearly 0 is not supported");
  if (!Number.isFinite(result)) throw new TemplateError("integer division result too large for a float");
  return result;
}

function floats(operator: string, left: number, right: number): Value {
  if (right === 0 && (operator === "/" || operator === "//" || operator === "%"))
    throw new TemplateError("float division by zero");
  switch (operator) {
    case "+":
      return left + right;
    case "-":
      return left - right;
    case "*":
      return left * right;
    case "/":
      return left / right;
    case "%":
      return modulo(left, right);
    case "//": {
      const quotient = (left - modulo(left, right)) / right;
      return quotient === 0 ? (left / right < 0 || Object.is(left / right, -0) ? -0 : 0) : Math.round(quotient);
    }
    default:
      if (left === 0 && right < 0) throw new TemplateError("0.0 cannot be raised to a negative power");
      if (left < 0 && !Number.isInteger(right)) throw new Unsupported("complex numbers are not supported");
      return finitePower(left, right);
  }
}

function finitePower(left: number, right: number): number {
  if (left === 1) return 1;
  const power = left ** right;
  if (!Number.isFinite(power) && Number.isFinite(left) && Number.isFinite(right))
    throw new TemplateError("Numerical result out of range");
  return power;
}

function modulo(left: number, right: number): number {
  const rest = left % right;
  if (rest === 0) return right < 0 ? -0 : 0;
  return rest < 0 !== right < 0 ? rest + right : rest;
}

export function negated(value: Value): Value {
  if (value instanceof Undefined) return value.fail();
  if (!isNumber(value)) throw new TemplateError(`bad operand type for unary -: '${typeName(value)}'`);
  return -numeric(value);
}

export function positive(value: Value): Value {
  if (value instanceof Undefined) return value.fail();
  if (!isNumber(value)) throw new TemplateError(`bad operand type for unary +: '${typeName(value)}'`);
  return numeric(value);
}

/** An int of Python's where a bool counts as one. Throws TemplateError for other values. */
export function integer(value: Value): number {
  if (typeof value === "bigint" || typeof value === "boolean") return Number(value);
  throw new TemplateError(`'${typeName(value)}' object cannot be interpreted as an integer`);
}

/** value[key] without attributes; undefined where Python raises a LookupError or TypeError. */
export function item(value: Value, key: Value): Value | undefined {
  if (value instanceof Undefined) return value.fail();
  if (value instanceof Dict) {
    if (isList(key) || key instanceof Dict) return undefined;
    return value.get(key);
  }
  if (typeof key !== "bigint" && typeof key !== "boolean") return undefined;
  const text = textOf(value);
  const items = text === undefined ? value : points(text);
  if (value instanceof Loop) return undefined;
  const values = isList(items) ? items : items instanceof Tuple ? items.items : undefined;
  if (values === undefined) {
    if (!(value instanceof Range)) return undefined;
    const index = Number(key) < 0 ? Number(key) + value.length : Number(key);
    return index >= 0 && index < value.length ? value.at(index) : undefined;
  }
  const found = values.at(Number(key));
  return value instanceof Markup && found !== undefined ? new Markup(str(found)) : found;
}

/** value[start:stop:step]. */
export function slice(value: Value, start: Value, stop: Value, step: Value): Value {
  if (value instanceof Undefined) return value.fail();
  const text = textOf(value);
  const items =
    text !== undefined
      ? points(text)
      : isList(value)
        ? value
        : value instanceof Tuple
          ? value.items
          : value instanceof Range
            ? Array.from({ length: value.length }, (_, index) => index)
            : undefined;
  if (items === undefined) throw new TemplateError(`'${typeName(value)}' object is not subscriptable`);
  const indices = sliceIndices(items.length, start, stop, step);
  if (value instanceof Range) return slicedRange(value, indices, step);
  const chosen = indices.map((index) => items[index] as Value);
  if (text !== undefined) {
    const joined = chosen.map(str).join("");
    return value instanceof Markup ? new Markup(joined) : joined;
  }
  return value instanceof Tuple ? new Tuple(chosen) : chosen;
}

function slicedRange(range: Range, indices: readonly number[], step: Value): Value {
  const by = range.step * (step === null ? 1n : BigInt(integer(step)));
  const [first] = indices;
  if (first === undefined) throw new Unsupported("an empty slice of a range is not supported");
  return new Range(range.at(first), range.at(first) + by * BigInt(indices.length), by);
}

function sliceIndices(length: number, start: Value, stop: Value, step: Value): readonly number[] {
  const by = step === null ? 1 : sliceIndex(step);
  if (by === 0) throw new TemplateError("slice step cannot be zero");
  const [low, high] = by > 0 ? [0, length] : [-1, length - 1];
  const bound = (value: Value, missing: number): number => {
    if (value === null) return missing;
    const index = sliceIndex(value);
    return Math.min(high, Math.max(low, index < 0 ? index + length : index));
  };
  const [from, to] = by > 0 ? [bound(start, low), bound(stop, high)] : [bound(start, high), bound(stop, low)];
  const indices: number[] = [];
  for (let index = from; by > 0 ? index < to : index > to; index += by) indices.push(index);
  return indices;
}

function sliceIndex(value: Value): number {
  if (typeof value === "bigint" || typeof value === "boolean") return Number(value);
  throw new TemplateError("slice indices must be integers or None or have an __index__ method");
}

/** Bounds of methods such as find(text, start, stop), as indices of a text with ``length`` characters. */
export function bounds(length: number, start: Value | undefined, stop: Value | undefined): readonly [number, number] {
  const bound = (value: Value | undefined, missing: number): number => {
    if (value === undefined || value === null) return missing;
    const index = sliceIndex(value);
    return index < 0 ? Math.max(0, index + length) : index;
  };
  return [bound(start, 0), Math.min(length, bound(stop, length))];
}
