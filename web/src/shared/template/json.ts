// JSON as Python's json module reads and writes it: ints apart from floats, members in their order.

import { compareTexts, points } from "./text.js";
import type { Value } from "./values.js";
import {
  Dict,
  TemplateError,
  Tuple,
  compare,
  decimal,
  floatRepr,
  isList,
  isNumber,
  textOf,
  typeName,
} from "./values.js";

/** A JSON value of JavaScript's, as Python reads it from the text that JSON.stringify writes. */
export function fromJs(value: unknown): Value {
  if (typeof value === "string" || typeof value === "boolean") return value;
  if (typeof value === "number") {
    if (!Number.isFinite(value)) return null;
    return Number.isInteger(value) && Math.abs(value) < 1e21 ? BigInt(JSON.stringify(value)) : value;
  }
  if (typeof value !== "object" || value === null) return null;
  if (Array.isArray(value)) return value.map(fromJs);
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return new Dict(members.map(([key, member]) => [key, fromJs(member)]));
}

const TOKEN =
  /[\t\n\r ]*(?:("(?:[^"\\]|\\.)*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)|(true|false|null)|([[\]{},:]))/y;
const MAX_DEPTH = 500;

/** The value of a JSON text. Throws SyntaxError. */
export function loads(text: string): Value {
  let at = 0;
  const token = (): RegExpExecArray => {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    if (match === null) throw new SyntaxError(`JSON: unexpected text at ${at}`);
    at = TOKEN.lastIndex;
    return match;
  };
  const list = (end: string, read: (first: RegExpExecArray) => void): void => {
    let match = token();
    if (match[4] === end) return;
    for (;;) {
      read(match);
      const next = token()[4];
      if (next === end) return;
      if (next !== ",") throw new SyntaxError(`JSON: expected , or ${end} before ${at}`);
      match = token();
    }
  };
  const value = ([, string, number, word, mark]: RegExpExecArray, depth: number): Value => {
    if (depth > MAX_DEPTH) throw new SyntaxError("JSON: nested too deeply");
    if (string !== undefined) return JSON.parse(string) as string;
    if (number !== undefined) return /[.eE]/.test(number) ? Number(number) : BigInt(number);
    if (word !== undefined) return JSON.parse(word) as boolean | null;
    if (mark === "[") {
      const items: Value[] = [];
      list("]", (first) => items.push(value(first, depth + 1)));
      return items;
    }
    if (mark !== "{") throw new SyntaxError(`JSON: unexpected ${mark} before ${at}`);
    const members = new Dict();
    list("}", (first) => {
      if (first[1] === undefined) throw new SyntaxError(`JSON: expected a key before ${at}`);
      if (token()[4] !== ":") throw new SyntaxError(`JSON: expected : before ${at}`);
      members.set(JSON.parse(first[1]) as string, value(token(), depth + 1));
    });
    return members;
  };
  const result = value(token(), 0);
  if (!/^[\t\n\r ]*$/.test(text.slice(at))) throw new SyntaxError(`JSON: unexpected text at ${at}`);
  return result;
}

export interface DumpOptions {
  readonly ensureAscii?: boolean;
  /** The text of one level; undefined for one line. */
  readonly indent?: string | undefined;
  readonly separators?: readonly [string, string] | undefined;
  readonly sortKeys?: boolean;
}

/** json.dumps(). */
export function dumps(
  value: Value,
  { ensureAscii = false, indent, separators, sortKeys = false }: DumpOptions,
): string {
  const [comma, colon] = separators ?? [indent === undefined ? ", " : ",", ": "];
  const quoted = (text: string): string => (ensureAscii ? asciiJson(text) : unicodeJson(text));
  const joined = (open: string, parts: readonly string[], close: string, depth: number): string => {
    if (parts.length === 0) return open + close;
    if (indent === undefined) return open + parts.join(comma) + close;
    const [outer, inner] = [`\n${indent.repeat(depth)}`, `\n${indent.repeat(depth + 1)}`];
    return open + inner + parts.join(comma + inner) + outer + close;
  };
  const key = (given: Value): string => {
    const text = textOf(given);
    if (text !== undefined) return quoted(text);
    if (given === null || isNumber(given)) return `"${plain(given)}"`;
    throw new TemplateError(`keys must be str, int, float, bool or None, not ${typeName(given)}`);
  };
  const written = (each: Value, depth: number): string => {
    const text = textOf(each);
    if (text !== undefined) return quoted(text);
    if (each === null || isNumber(each)) return plain(each);
    const items = each instanceof Tuple ? each.items : each;
    if (isList(items))
      return joined(
        "[",
        items.map((part) => written(part, depth + 1)),
        "]",
        depth,
      );
    if (!(each instanceof Dict)) throw new TemplateError(`Object of type ${typeName(each)} is not JSON serializable`);
    const pairs = [...each.pairs()];
    if (sortKeys) pairs.sort(([left], [right]) => comparedKeys(left, right));
    const members = pairs.map(([name, member]) => key(name) + colon + written(member, depth + 1));
    return joined("{", members, "}", depth);
  };
  return written(value, 0);
}

function comparedKeys(left: Value, right: Value): number {
  return typeof left === "string" && typeof right === "string" ? compareTexts(left, right) : compare(left, right);
}

function plain(value: null | boolean | bigint | number): string {
  if (typeof value !== "number") return typeof value === "bigint" ? decimal(value) : String(value);
  if (Number.isFinite(value)) return floatRepr(value);
  return Number.isNaN(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
}

/** JSON.stringify escapes halves of surrogate pairs, Python does not. */
const unicodeJson = (text: string): string =>
  `"${points(text)
    .map((character) => (/[\ud800-\udfff]/u.test(character) ? character : JSON.stringify(character).slice(1, -1)))
    .join("")}"`;

const asciiJson = (text: string): string =>
  JSON.stringify(text).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
