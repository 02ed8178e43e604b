// Python's values, as far as chat templates have them, with Python's truth, equality, order, str() and repr().
//
// None is null, a bool is a boolean, an int is a bigint, a float is a number, a str is a string, a list is an array.

import { fixedDigits } from "./digits.js";
import { compareTexts, isPrintable, points } from "./text.js";

export type Value =
  | null
  | boolean
  | bigint
  | number
  | string
  | readonly Value[]
  | Tuple
  | Dict
  | Markup
  | Undefined
  | Namespace
  | Iterator
  | Range
  | View
  | Callable
  | Loop;

/** An error of the template: Python would raise one too. */
export class TemplateError extends Error {}

/** What Python's engine can do and this one cannot. */
export class Unsupported extends TemplateError {}

export class Tuple {
  constructor(
    readonly items: readonly Value[],
    /** The attributes of a named tuple, which groupby makes. */
    readonly names: readonly string[] = [],
  ) {}
}

/** A str that `safe` or `escape` marked: what is added to it is escaped. */
export class Markup {
  constructor(readonly text: string) {}
}

/** Jinja2's Undefined: it prints nothing and is empty, and any other use raises ``message``. */
export class Undefined {
  constructor(readonly message: string) {}

  fail(): never {
    throw new TemplateError(this.message);
  }
}

export class Namespace {
  constructor(readonly values: Dict) {}
}

/** A generator: it can be read once. */
export class Iterator {
  readonly next: () => IteratorResult<Value>;

  constructor(
    values: Iterable<Value>,
    readonly kind = "generator",
  ) {
    const iterator = values[Symbol.iterator]();
    this.next = () => iterator.next();
  }

  *[Symbol.iterator](): Generator<Value, void> {
    for (let step = this.next(); !step.done; step = this.next()) yield step.value;
  }
}

export class Range {
  readonly length: number;

  constructor(
    readonly start: bigint,
    readonly stop: bigint,
    readonly step: bigint,
  ) {
    const span = step > 0n ? stop - start : start - stop;
    const size = step > 0n ? step : -step;
    this.length = span <= 0n ? 0 : Number((span + size - 1n) / size);
  }

  at(index: number): bigint {
    return this.start + BigInt(index) * this.step;
  }
}

/** The result of a dict's keys(), values() or items(). */
export class View {
  constructor(
    readonly dict: Dict,
    readonly kind: "keys" | "values" | "items",
  ) {}

  get items(): readonly Value[] {
    const pairs = [...this.dict.pairs()];
    if (this.kind === "items") return pairs.map((pair) => new Tuple(pair));
    return pairs.map(([key, item]) => (this.kind === "keys" ? key : item));
  }
}

export type Named = ReadonlyMap<string, Value>;

/** A function, method or macro. */
export class Callable {
  constructor(
    readonly name: string,
    readonly call: (args: readonly Value[], named: Named) => Value,
    /** The attributes of a macro. */
    readonly attributes: ReadonlyMap<string, Value> = new Map(),
  ) {}
}

/** A dict, in the order of insertion. 1, 1.0 and True are one key. */
export class Dict {
  readonly #entries = new Map<unknown, [Value, Value]>();

  constructor(pairs: Iterable<readonly [Value, Value]> = []) {
    for (const [key, value] of pairs) this.set(key, value);
  }

  get size(): number {
    return this.#entries.size;
  }

  get(key: Value): Value | undefined {
    return this.#entries.get(hashed(key))?.[1];
  }

  set(key: Value, value: Value): void {
    const hash = hashed(key);
    const entry = this.#entries.get(hash);
    if (entry === undefined) this.#entries.set(hash, [key, value]);
    else entry[1] = value;
  }

  pairs(): Iterable<readonly [Value, Value]> {
    return this.#entries.values();
  }

  keys(): readonly Value[] {
    return [...this.pairs()].map(([key]) => key);
  }
}

/** The variable `loop`. */
export class Loop {
  index0 = -1;
  previous: Value | undefined;
  current: Value | undefined;
  changedFrom: Value | undefined;
  #length: number | undefined;
  #ahead: readonly Value[] = [];

  constructor(
    private readonly values: Value,
    private readonly source: Iterator,
    readonly depth0: number,
    readonly recurse: ((values: Value, depth: number) => Value) | undefined,
  ) {}

  get length(): number {
    if (this.#length === undefined) {
      const known = lengthOrNothing(this.values);
      if (known === undefined) this.#ahead = [...this.#ahead, ...this.source];
      this.#length = known ?? this.#ahead.length + this.index0 + 1;
    }
    return this.#length;
  }

  /** The next item, without moving to it. */
  peek(): Value | undefined {
    if (this.#ahead.length === 0) {
      const step = this.source.next();
      if (!step.done) this.#ahead = [step.value];
    }
    return this.#ahead[0];
  }

  /** Moves to the next item; undefined at the end. */
  advance(): Value | undefined {
    const item = this.peek();
    if (item === undefined) return undefined;
    this.#ahead = this.#ahead.slice(1);
    this.index0 += 1;
    this.previous = this.current;
    this.current = item;
    return item;
  }
}

/** What stands for a value as a key. Throws TemplateError for what Python cannot hash. */
function hashed(value: Value): unknown {
  if (typeof value === "boolean") return value ? 1n : 0n;
  if (typeof value === "number" && Number.isInteger(value)) return BigInt(value);
  if (value instanceof Markup) return value.text;
  if (value instanceof Tuple) return Symbol.for(value.items.map((item) => hashName(hashed(item))).join(","));
  if (Array.isArray(value) || value instanceof Dict || value instanceof View)
    throw new TemplateError(`unhashable type: '${typeName(value)}'`);
  if (value instanceof Undefined) return Undefined;
  return value;
}

function hashName(hash: unknown): string {
  return typeof hash === "symbol" ? `(${String(hash)})` : `${typeof hash}${JSON.stringify(String(hash))}`;
}

export const isList = (value: Value): value is readonly Value[] => Array.isArray(value);

export const isNumber = (value: Value): value is boolean | bigint | number =>
  typeof value === "boolean" || typeof value === "bigint" || typeof value === "number";

/** The text of a str; undefined for other values. */
export function textOf(value: Value): string | undefined {
  if (typeof value === "string") return value;
  return value instanceof Markup ? value.text : undefined;
}

export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (typeof value === "boolean") return "bool";
  if (typeof value === "bigint") return "int";
  if (typeof value === "number") return "float";
  if (typeof value === "string") return "str";
  if (isList(value)) return "list";
  if (value instanceof Callable) return "function";
  if (value instanceof Loop) return "LoopContext";
  if (value instanceof Iterator) return value.kind;
  if (value instanceof View) return `dict_${value.kind}`;
  const names = { Tuple, Dict, Markup, Undefined, Namespace, Range };
  const [name = "object"] = Object.entries(names).find(([, kind]) => value instanceof kind) ?? [];
  return ["Tuple", "Dict", "Range"].includes(name) ? name.toLowerCase() : name;
}

export function truth(value: Value): boolean {
  if (value === null || value instanceof Undefined) return false;
  if (isNumber(value)) return Boolean(value);
  return lengthOrNothing(value) !== 0;
}

/** The length of a value; undefined if it has none. */
function lengthOrNothing(value: Value): number | undefined {
  if (typeof value === "string") return points(value).length;
  if (isList(value)) return value.length;
  if (value instanceof Markup) return points(value.text).length;
  if (value instanceof Tuple) return value.items.length;
  if (value instanceof Dict) return value.size;
  if (value instanceof View) return value.dict.size;
  if (value instanceof Range || value instanceof Loop) return value.length;
  return value instanceof Undefined ? 0 : undefined;
}

export function lengthOf(value: Value): bigint {
  const length = lengthOrNothing(value);
  if (length === undefined) throw new TemplateError(`object of type '${typeName(value)}' has no len()`);
  return BigInt(length);
}

export function isIterable(value: Value): boolean {
  return !(value === null || isNumber(value) || value instanceof Callable || value instanceof Namespace);
}

/** The items of a value, read as Python's iter() does. */
export function iterate(value: Value): Iterable<Value> {
  if (isList(value)) return value;
  if (typeof value === "string") return points(value);
  if (value instanceof Markup) return points(value.text).map((each) => new Markup(each));
  if (value instanceof Tuple || value instanceof View) return value.items;
  if (value instanceof Dict) return value.keys();
  if (value instanceof Range) return Array.from({ length: value.length }, (_, index) => value.at(index));
  if (value instanceof Iterator) return value;
  if (value instanceof Undefined) return [];
  if (value instanceof Loop) throw new Unsupported("iteration over 'loop' is not supported");
  throw new TemplateError(`'${typeName(value)}' object is not iterable`);
}

export function equal(left: Value, right: Value): boolean {
  if (left === right) return true;
  if (isNumber(left) && isNumber(right)) return numeric(left) == numeric(right);
  const text = textOf(left);
  if (text !== undefined) return text === textOf(right);
  if (left instanceof Undefined) return right instanceof Undefined;
  if (isList(left)) return isList(right) && allEqual(left, right);
  if (left instanceof Tuple) return right instanceof Tuple && allEqual(left.items, right.items);
  if (left instanceof Range) return right instanceof Range && allEqual([...iterate(left)], [...iterate(right)]);
  if (left instanceof View && right instanceof View && left.kind !== "values" && right.kind !== "values")
    return left.dict.size === right.dict.size && left.items.every((item) => contains(right, item));
  if (!(left instanceof Dict && right instanceof Dict) || left.size !== right.size) return false;
  return [...left.pairs()].every(([key, item]) => {
    const other = right.get(key);
    return other !== undefined && equal(item, other);
  });
}

const allEqual = (left: readonly Value[], right: readonly Value[]): boolean =>
  left.length === right.length && left.every((item, index) => equal(item, right[index] as Value));

/** A bool as the int that it is. */
export const numeric = (value: boolean | bigint | number): bigint | number =>
  typeof value === "boolean" ? (value ? 1n : 0n) : value;

/** A number as a float. Throws TemplateError for an int that is too large. */
export function real(value: boolean | bigint | number): number {
  const result = Number(value);
  if (typeof value === "bigint" && !Number.isFinite(result))
    throw new TemplateError("int too large to convert to float");
  return result;
}

/** Python reads and writes no longer ints in decimal digits. */
export const MAX_DIGITS = 4300;

/** An int's digits. */
export function decimal(value: bigint): string {
  const digits = String(value);
  if (digits.length > MAX_DIGITS + (value < 0n ? 1 : 0))
    throw new TemplateError(`Exceeds the limit (${MAX_DIGITS} digits) for integer string conversion`);
  return digits;
}

/** Negative, 0 or positive as left is less than, equal to or greater than right; NaN if neither. */
export function compare(left: Value, right: Value): number {
  if (isNumber(left) && isNumber(right)) {
    const [one, other] = [numeric(left), numeric(right)];
    return one < other ? -1 : one > other ? 1 : one == other ? 0 : NaN;
  }
  const [text, other] = [textOf(left), textOf(right)];
  if (text !== undefined && other !== undefined) return compareTexts(text, other);
  if (left instanceof Undefined) left.fail();
  if (right instanceof Undefined) right.fail();
  const lists = isList(left) && isList(right) ? [left, right] : undefined;
  const [ones, others] = lists ?? (left instanceof Tuple && right instanceof Tuple ? [left.items, right.items] : []);
  if (ones === undefined || others === undefined) {
    if (left instanceof View && right instanceof View) throw new Unsupported("views of dicts are not compared");
    throw new TemplateError(`'<' not supported between '${typeName(left)}' and '${typeName(right)}'`);
  }
  const at = ones.findIndex((item, index) => index >= others.length || !equal(item, others[index] as Value));
  if (at === -1) return ones.length - others.length;
  return at >= others.length ? 1 : compare(ones[at] as Value, others[at] as Value);
}

/** Python's `item in container`. */
export function contains(container: Value, item: Value): boolean {
  const text = textOf(container);
  if (text !== undefined) {
    const part = textOf(item);
    if (part === undefined)
      throw new TemplateError(`'in <string>' requires string as left operand, not ${typeName(item)}`);
    return text.includes(part);
  }
  if (container instanceof Dict) return container.get(item) !== undefined;
  for (const each of iterate(container)) if (equal(each, item)) return true;
  return false;
}

/** Python's str(). */
export function str(value: Value): string {
  if (value instanceof Undefined) return "";
  return textOf(value) ?? repr(value);
}

/** Python's repr(). */
export function repr(value: Value): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "bigint") return decimal(value);
  if (typeof value === "number") return floatRepr(value);
  if (typeof value === "string") return quoted(value);
  if (isList(value)) return `[${value.map(repr).join(", ")}]`;
  if (value instanceof Tuple) return `(${value.items.map(repr).join(", ")}${value.items.length === 1 ? "," : ""})`;
  if (value instanceof Dict) return `{${Array.from(value.pairs(), (pair) => pair.map(repr).join(": ")).join(", ")}}`;
  if (value instanceof Markup) return `Markup(${quoted(value.text)})`;
  if (value instanceof Undefined) return "Undefined";
  if (value instanceof Namespace) return `<Namespace ${repr(value.values)}>`;
  if (value instanceof View) return `dict_${value.kind}([${value.items.map(repr).join(", ")}])`;
  if (value instanceof Loop) return `<LoopContext ${value.index0 + 1}/${value.length}>`;
  if (value instanceof Range)
    return `range(${value.start}, ${value.stop}${value.step === 1n ? "" : `, ${value.step}`})`;
  if (value instanceof Callable && value.attributes.size > 0)
    return `<Macro ${value.name === "" ? "anonymous" : quoted(value.name)}>`;
  throw new Unsupported(`a ${typeName(value)} is written, which Python writes with its address`);
}

/** The shortest digits that read back as the same float, with an exponent below 1e-4 and from 1e16. */
export function floatRepr(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value < 0 ? "-inf" : "inf";
  const [digits = "", exponent = "0"] = value.toExponential().split("e");
  const power = Number(exponent);
  const sign = Object.is(value, -0) ? "-" : "";
  if (power < -4 || power >= 16) return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  const text = power < 0 ? fixedDigits(value, digits.replace(/[-.]/g, "").length - 1 - power) : String(value);
  return sign + (text.includes(".") ? text : `${text}.0`);
}

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = points(text).map((character) => {
    if (character === quote || character === "\\") return `\\${character}`;
    if (isPrintable(character)) return character;
    const code = character.codePointAt(0) ?? 0;
    const known = { 9: "\\t", 10: "\\n", 13: "\\r" }[code];
    const letter = code < 256 ? "x" : code < 65536 ? "u" : "U";
    return known ?? `\\${letter}${code.toString(16).padStart({ x: 2, u: 4, U: 8 }[letter], "0")}`;
  });
  return quote + escaped.join("") + quote;
}
