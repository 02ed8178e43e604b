// The methods of Python's str that a sandboxed template may call.

import { bounds, integer } from "./operators.js";
import { bind } from "./parameters.js";
import {
  capitalize,
  caseFolded,
  find,
  hasCase,
  isPrintable,
  isSpace,
  isTitle,
  points,
  replace,
  size,
  splitLines,
  splitSpaces,
  strip,
  swapCase,
  title,
} from "./text.js";
import type { Named, Value } from "./values.js";
import {
  Markup,
  TemplateError,
  Tuple,
  Unsupported,
  isList,
  iterate,
  lengthOf,
  textOf,
  truth,
  typeName,
} from "./values.js";

type Given = readonly (Value | undefined)[];
type Method = readonly [parameters: string, call: (text: string, ...given: Given) => Value];

function required(value: Value | undefined): string {
  const text = textOf(value ?? null);
  if (text === undefined) throw new TemplateError(`expected str, got ${typeName(value ?? null)}`);
  return text;
}

const optional = (value: Value | undefined): string | undefined =>
  value === undefined || value === null ? undefined : required(value);

/** How often something is done at most; a negative count is no limit. */
function limit(value: Value | undefined): number {
  const count = value === undefined ? -1 : integer(value);
  return count < 0 ? Infinity : count;
}

const stripped =
  (sides: "l" | "r" | "lr"): Method[1] =>
  (text, chars) =>
    strip(text, optional(chars), sides);

const found =
  (last: boolean, raises: boolean): Method[1] =>
  (text, part, start, stop) => {
    const [from, to] = bounds(size(text), start, stop);
    const at = find(text, required(part), from, to, last);
    if (at === -1 && raises) throw new TemplateError("substring not found");
    return BigInt(at);
  };

const begins =
  (test: (text: string, part: string) => boolean): Method[1] =>
  (text, part, start, stop) => {
    const [from, to] = bounds(size(text), start, stop);
    const parts = part instanceof Tuple ? part.items : [part];
    if (isList(part ?? null)) throw new TemplateError("first arg must be str or a tuple of str, not list");
    const searched = points(text).slice(from, to).join("");
    const texts = parts.map(required);
    return from <= size(text) && from <= to && texts.some((each) => test(searched, each));
  };

const split =
  (fromRight: boolean): Method[1] =>
  (text, separator, most) => {
    const by = optional(separator);
    const count = limit(most);
    if (by === undefined) return fromRight ? splitSpacesRight(text, count) : splitSpaces(text, count);
    if (by === "") throw new TemplateError("empty separator");
    const parts = text.split(by);
    if (parts.length - 1 <= count) return parts;
    return fromRight
      ? [parts.slice(0, parts.length - count).join(by), ...parts.slice(parts.length - count)]
      : [...parts.slice(0, count), parts.slice(count).join(by)];
  };

function splitSpacesRight(text: string, most: number): readonly string[] {
  const parts: string[] = [];
  let rest = strip(text, undefined, "r");
  while (rest !== "" && parts.length < most) {
    const characters = points(rest);
    const at = characters.findLastIndex(isSpace);
    parts.unshift(characters.slice(at + 1).join(""));
    rest = strip(characters.slice(0, at + 1).join(""), undefined, "r");
  }
  const last = parts.length < most ? strip(rest, undefined, "l") : rest;
  return last === "" ? parts : [last, ...parts];
}

const partitioned =
  (last: boolean): Method[1] =>
  (text, separator) => {
    const by = required(separator);
    if (by === "") throw new TemplateError("empty separator");
    const at = last ? text.lastIndexOf(by) : text.indexOf(by);
    if (at === -1) return new Tuple(last ? ["", "", text] : [text, "", ""]);
    return new Tuple([text.slice(0, at), by, text.slice(at + by.length)]);
  };

const justified =
  (pad: (text: string, missing: number, fill: string) => string): Method[1] =>
  (text, width, fill) => {
    const filler = fill === undefined ? " " : required(fill);
    if (size(filler) !== 1) throw new TemplateError("The fill character must be exactly one character long");
    const missing = integer(width ?? null) - size(text);
    if (missing > 2 ** 20) throw new Unsupported("a text's width is too large");
    return missing <= 0 ? text : pad(text, missing, filler);
  };

/** str.center(): an odd place goes to the left only if the width is odd. */
export function centered(text: string, missing: number, fill: string): string {
  const width = missing + size(text);
  const left = Math.floor(missing / 2) + (missing & width & 1);
  return fill.repeat(left) + text + fill.repeat(missing - left);
}

// Unicode's numeric types, which regular expressions lack: digits that are no decimal digits, and ideographs of numbers.
const DIGIT = /[\p{Nd}²³¹፩-፱᧚⁰⁴-⁹₀-₉①-⑨⑴-⑼⒈-⒐⓪⓵-⓽⓿❶-❾➀-➈➊-➒𐩀-𐩃𐹠-𐹨𑁒-𑁚🄀-🄊]/u;
const NUMERIC =
  /[\p{N}㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭\u{2f890}]/u;

const all =
  (pattern: RegExp): Method[1] =>
  (text) =>
    text !== "" && points(text).every((character) => pattern.test(character));

const METHODS: Readonly<Record<string, Method>> = {
  capitalize: ["", capitalize],
  casefold: ["", caseFolded],
  center: ["width fill? |", justified(centered)],
  count: [
    "part start? stop? |",
    (text, part, start, stop) => {
      const sought = required(part);
      const [from, to] = bounds(size(text), start, stop);
      if (from > size(text) || to < from) return 0n;
      const searched = points(text).slice(from, to).join("");
      return BigInt(sought === "" ? size(searched) + 1 : searched.split(sought).length - 1);
    },
  ],
  endswith: ["part start? stop? |", begins((text, part) => text.endsWith(part))],
  expandtabs: ["tabsize?", (text, tabs) => expandTabs(text, tabs === undefined ? 8 : integer(tabs))],
  find: ["part start? stop? |", found(false, false)],
  index: ["part start? stop? |", found(false, true)],
  isalnum: ["", all(/[\p{L}\p{N}]/u)],
  isalpha: ["", all(/\p{L}/u)],
  isascii: ["", (text) => points(text).every((character) => character <= "\x7f")],
  isdecimal: ["", all(/\p{Nd}/u)],
  isdigit: ["", all(DIGIT)],
  islower: ["", (text) => hasCase(text, true)],
  isnumeric: ["", all(NUMERIC)],
  isprintable: ["", (text) => points(text).every(isPrintable)],
  isspace: ["", isSpace],
  istitle: ["", isTitle],
  isupper: ["", (text) => hasCase(text, false)],
  join: ["items |", (text, items) => joined(text, items ?? null)],
  ljust: ["width fill? |", justified((text, missing, fill) => text + fill.repeat(missing))],
  lower: ["", (text) => text.toLowerCase()],
  lstrip: ["chars? |", stripped("l")],
  partition: ["separator |", partitioned(false)],
  removeprefix: [
    "part |",
    (text, part) => (text.startsWith(required(part)) ? text.slice(required(part).length) : text),
  ],
  removesuffix: [
    "part |",
    (text, part) => (text.endsWith(required(part)) ? text.slice(0, text.length - required(part).length) : text),
  ],
  replace: ["old by most? |", (text, old, by, most) => replace(text, required(old), required(by), limit(most))],
  rfind: ["part start? stop? |", found(true, false)],
  rindex: ["part start? stop? |", found(true, true)],
  rjust: ["width fill? |", justified((text, missing, fill) => fill.repeat(missing) + text)],
  rpartition: ["separator |", partitioned(true)],
  rsplit: ["sep? maxsplit?", split(true)],
  rstrip: ["chars? |", stripped("r")],
  split: ["sep? maxsplit?", split(false)],
  splitlines: ["keepends?", (text, keepEnds) => splitLines(text, keepEnds !== undefined && truth(keepEnds))],
  startswith: ["part start? stop? |", begins((text, part) => text.startsWith(part))],
  strip: ["chars? |", stripped("lr")],
  swapcase: ["", swapCase],
  title: ["", title],
  upper: ["", (text) => text.toUpperCase()],
  zfill: ["width |", (text, width) => zeroFilled(text, integer(width ?? null))],
};

/** Methods whose arguments a text that is marked as safe escapes. */
const ESCAPING = new Set([
  "join",
  "replace",
  "center",
  "ljust",
  "rjust",
  "partition",
  "rpartition",
  "zfill",
  "expandtabs",
]);

export const TEXT_METHODS: readonly string[] = [...Object.keys(METHODS), "format", "format_map"];

export const isTextMethod = (name: string): boolean => Object.hasOwn(METHODS, name);

/** ``receiver.name(...)`` for a str. */
export function callTextMethod(receiver: Value, name: string, args: readonly Value[], named: Named): Value {
  const [parameters, call] = METHODS[name] ?? ["", () => null];
  const result = call(required(receiver), ...bind(name, parameters, args, named));
  if (!(receiver instanceof Markup)) return result;
  if (ESCAPING.has(name)) throw new Unsupported(`'${name}' of a text that is marked as safe is not supported`);
  return marked(result);
}

function marked(value: Value): Value {
  if (typeof value === "string") return new Markup(value);
  return isList(value) ? value.map(marked) : value;
}

export function joined(separator: string, items: Value): string {
  const texts: string[] = [];
  for (const item of iterate(items)) {
    const text = textOf(item);
    if (text === undefined)
      throw new TemplateError(`sequence item ${texts.length}: expected str instance, ${typeName(item)} found`);
    texts.push(text);
  }
  return texts.join(separator);
}

function expandTabs(text: string, tabs: number): string {
  let column = 0;
  return points(text)
    .map((character) => {
      if (character !== "\t") {
        column = character === "\n" || character === "\r" ? 0 : column + 1;
        return character;
      }
      const missing = tabs > 0 ? tabs - (column % tabs) : 0;
      column += missing;
      return " ".repeat(missing);
    })
    .join("");
}

function zeroFilled(text: string, width: number): string {
  if (width > 2 ** 20) throw new Unsupported("a text's width is too large");
  const missing = Math.max(0, width - Number(lengthOf(text)));
  const sign = /^[-+]/.exec(text)?.[0] ?? "";
  return sign + "0".repeat(missing) + text.slice(sign.length);
}
