// Jinja2's filters. Those that read sequences are in sequence_filters.ts.

import { ownAttribute } from "./attributes.js";
import { formatPercent } from "./format.js";
import { dumps } from "./json.js";
import { rounded, toFloat, toInteger } from "./numbers.js";
import { binary, escaped, integer } from "./operators.js";
import { bind } from "./parameters.js";
import { SEQUENCE_FILTERS } from "./sequence_filters.js";
import { SPACES, points, replace, size, splitLines, strip } from "./text.js";
import { callTextMethod, centered } from "./text_methods.js";
import type { Named, Value } from "./values.js";
import {
  Dict,
  Markup,
  TemplateError,
  Tuple,
  Undefined,
  Unsupported,
  isList,
  isNumber,
  lengthOf,
  numeric,
  str,
  textOf,
  truth,
  typeName,
} from "./values.js";

/** Calls a filter by its name, for map(). */
export type CallFilter = (name: string, value: Value, args: readonly Value[], named: Named) => Value;
type Given = readonly (Value | undefined)[];
export type Filter = readonly [parameters: string, call: (value: Value, ...given: Given) => Value];

const WORD_START = new RegExp(`([-${SPACES}({[<]+)`);

/** A str as it is, other values as their text. */
const softText = (value: Value): string | Markup => (value instanceof Markup ? value : str(value));

const textMethod =
  (name: string): Filter[1] =>
  (value, ...given) =>
    callTextMethod(
      softText(value),
      name,
      given.filter((each) => each !== undefined),
      new Map(),
    );

const defaulted: Filter = [
  "value default_value? boolean?",
  (value, other = "", boolean = false) =>
    value instanceof Undefined || (truth(boolean) && !truth(value)) ? other : value,
];
const length: Filter = ["value |", lengthOf];
const escape: Filter = ["value |", escaped];

const PLAIN: Readonly<Record<string, Filter>> = {
  abs: ["value |", absolute],
  attr: [
    "obj name",
    (value, name = "") => {
      const text = str(name);
      // Undefined has no attributes but its methods.
      if (value instanceof Undefined) return value.fail();
      const found = ownAttribute(value, text);
      return found === undefined ? new Undefined(`'${typeName(value)} object' has no attribute '${text}'`) : found;
    },
  ],
  capitalize: ["s", textMethod("capitalize")],
  center: [
    "value width?",
    (value, width = 80n) => {
      const text = str(value);
      const missing = integer(width) - size(text);
      if (missing > 2 ** 20) throw new Unsupported("a text's width is too large");
      return same(value, missing <= 0 ? text : centered(text, missing, " "));
    },
  ],
  count: length,
  d: defaulted,
  default: defaulted,
  e: escape,
  escape,
  float: ["value default?", (value, other = 0) => toFloat(value) ?? other],
  forceescape: ["value", (value) => escaped(str(value))],
  indent: ["s width? first? blank?", indented],
  int: ["value default? base?", toInt],
  length,
  lower: ["s", textMethod("lower")],
  replace: [
    "s old new count?",
    (value, old = null, by = null, count = null) => {
      const most = count === null ? Infinity : integer(count);
      return replace(str(value), str(old), str(by), most < 0 ? Infinity : most);
    },
  ],
  round: ["value precision? method?", toRounded],
  safe: ["value", (value) => new Markup(str(value))],
  string: ["value |", softText],
  title: ["s", (value) => str(value).split(WORD_START).map(titleWord).join("")],
  tojson: ["value ensure_ascii? indent? separators? sort_keys?", toJson],
  trim: [
    "value chars?",
    (value, chars = null) => same(value, strip(str(value), chars === null ? undefined : text(chars), "lr")),
  ],
  truncate: ["s length? killwords? end? leeway?", truncated],
  upper: ["s", textMethod("upper")],
  wordcount: ["s", (value) => BigInt((str(value).match(/[\p{L}\p{N}_]+/gu) ?? []).length)],
};

export const FILTERS: Readonly<Record<string, Filter>> = { ...PLAIN, ...SEQUENCE_FILTERS };
/** Filters that accept any arguments. */
export const OPEN_FILTERS = ["format", "map", "select", "reject", "selectattr", "rejectattr"];

export function callFilter(name: string, value: Value, args: readonly Value[], named: Named): Value {
  if (name === "format") {
    if (args.length > 0 && named.size > 0)
      throw new TemplateError("can't handle positional and keyword arguments at the same time");
    return formatPercent(softText(value), named.size > 0 ? new Dict(named) : new Tuple(args));
  }
  const filter = Object.hasOwn(FILTERS, name) ? FILTERS[name] : undefined;
  if (filter === undefined) throw new TemplateError(`No filter named '${name}'.`);
  const [first = null, ...rest] = bind(name, filter[0], [value, ...args], named);
  return filter[1](first, ...rest);
}

function text(value: Value): string {
  const found = textOf(value);
  if (found === undefined) throw new TemplateError(`expected str, got ${typeName(value)}`);
  return found;
}

/** A text that is marked as safe if ``like`` is. */
const same = (like: Value, result: string): Value => (like instanceof Markup ? new Markup(result) : result);

function absolute(value: Value): Value {
  if (!isNumber(value)) throw new TemplateError(`bad operand type for abs(): '${typeName(value)}'`);
  const number = numeric(value);
  return typeof number === "bigint" ? (number < 0n ? -number : number) : Math.abs(number);
}

function titleWord(word: string): string {
  const [first = "", ...rest] = points(word);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

function indented(value: Value, width: Value = 4n, first: Value = false, blank: Value = false): Value {
  const source = textOf(value);
  if (source === undefined) return value instanceof Undefined ? value.fail() : binary("+", value, "\n");
  const space = textOf(width) ?? " ".repeat(Math.max(0, integer(width)));
  const lines = splitLines(`${source}\n`, false);
  const [head = "", ...rest] = lines;
  const body = truth(blank)
    ? lines.join(`\n${space}`)
    : [head, ...rest.map((line) => (line === "" ? "" : space + line))].join("\n");
  return same(value, truth(first) ? space + body : body);
}

function toInt(value: Value, other: Value = 0n, base: Value = 10n): Value {
  // Only texts have a base; one that is not an integer is an error that int() ignores.
  const radix = textOf(value) === undefined ? 10 : typeof base === "number" || !isNumber(base) ? -1 : integer(base);
  const exact = toInteger(value, radix);
  if (exact !== undefined) return exact;
  const float = toFloat(value);
  return float === undefined || !Number.isFinite(float) ? other : BigInt(Math.trunc(float));
}

function toRounded(value: Value, precision: Value = 0n, method: Value = "common"): Value {
  if (method === "common") return rounded(value, integer(precision));
  if (method !== "ceil" && method !== "floor") throw new TemplateError("method must be common, ceil or floor");
  const factor = binary("**", 10n, precision);
  const scaled = binary("*", value, factor);
  if (!isNumber(scaled)) throw new TemplateError(`must be real number, not ${typeName(scaled)}`);
  const number = numeric(scaled);
  if (typeof number === "bigint") return binary("/", number, factor);
  if (!Number.isFinite(number)) throw new TemplateError("cannot convert float infinity to integer");
  return binary("/", BigInt(method === "ceil" ? Math.ceil(number) : Math.floor(number)), factor);
}

function toJson(
  value: Value,
  ascii: Value = false,
  indent: Value = null,
  separators: Value = null,
  sortKeys: Value = false,
): Value {
  // json.dumps() writes a str without a look at the indent.
  const level =
    indent === null || textOf(value) !== undefined
      ? undefined
      : (textOf(indent) ?? " ".repeat(Math.max(0, integer(indent))));
  const pair = separators instanceof Tuple ? separators.items : separators;
  if (pair !== null && !(isList(pair) && pair.length === 2)) throw new TemplateError("separators must be two texts");
  const marks = pair === null ? undefined : ([text(pair[0] ?? null), text(pair[1] ?? null)] as const);
  return dumps(value, { ensureAscii: truth(ascii), indent: level, separators: marks, sortKeys: truth(sortKeys) });
}

function truncated(
  value: Value,
  length_: Value = 255n,
  killWords: Value = false,
  end: Value = "...",
  leeway: Value = null,
): Value {
  const [most, margin, mark] = [integer(length_), leeway === null ? 5 : integer(leeway), text(end)];
  if (most < size(mark) || margin < 0) throw new TemplateError("truncate: the length is too small");
  if (Number(lengthOf(value)) <= most + margin) return value;
  const cut = points(text(value))
    .slice(0, most - size(mark))
    .join("");
  if (truth(killWords)) return same(value, cut + mark);
  const space = cut.lastIndexOf(" ");
  return same(value, (space === -1 ? cut : cut.slice(0, space)) + mark);
}
