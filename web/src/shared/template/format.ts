// Python's `text % values` and text.format(...).

import { exponential, fixedDigits } from "./digits.js";
import { points, size } from "./text.js";
import type { Named, Value } from "./values.js";
import {
  Dict,
  Markup,
  TemplateError,
  Tuple,
  Undefined,
  Unsupported,
  decimal,
  floatRepr,
  isList,
  isNumber,
  numeric,
  real,
  repr,
  str,
  textOf,
  typeName,
} from "./values.js";

const PERCENT = /%(?:\(([^)]*)\))?([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?[hlL]?([^]?)/gu;
const MAX_WIDTH = 2 ** 20;

/** ``text % values``. */
export function formatPercent(template: Value, values: Value): Value {
  if (template instanceof Markup) throw new Unsupported("'%' on a text that is marked as safe is not supported");
  const given = values instanceof Tuple ? values.items : [values];
  let used = 0;
  const next = (): Value => {
    if (used >= given.length) throw new TemplateError("not enough arguments for format string");
    return given[used++] as Value;
  };
  const text = str(template).replace(
    PERCENT,
    (
      _,
      name: string | undefined,
      flags: string,
      width: string | undefined,
      precision: string | undefined,
      kind: string,
    ) => {
      if (kind === "%" && name === undefined) return "%";
      if (width === "*" || precision === "*") throw new Unsupported("'*' in a format is not supported");
      let value: Value;
      if (name === undefined) value = next();
      else {
        if (!(values instanceof Dict)) throw new TemplateError("format requires a mapping");
        const found = values.get(name);
        if (found === undefined) throw new TemplateError(`'${name}'`);
        value = found;
      }
      if (kind === "%") return "%";
      return percentField(value, flags, Number(width ?? 0), precision, kind);
    },
  );
  const mapping = values instanceof Dict || isList(values) || values instanceof Undefined;
  if (used < given.length && !mapping) throw new TemplateError("not all arguments converted during string formatting");
  return text;
}

function percentField(value: Value, flags: string, width: number, precision: string | undefined, kind: string): string {
  const left = flags.includes("-");
  const sign = flags.includes("+") ? "+" : flags.includes(" ") ? " " : "";
  const digits = precision === undefined ? undefined : Number(precision);
  if (flags.includes("#")) throw new Unsupported("'#' in a format is not supported");
  if ("sra".includes(kind) && kind !== "") {
    const text = kind === "s" ? str(value) : repr(value);
    if (kind === "a" && /[^ -~]/.test(text)) throw new Unsupported("'%a' is not supported");
    return padded(points(text).slice(0, digits).join(""), width, left ? "<" : ">", " ");
  }
  if (kind === "c") {
    const code = typeof value === "bigint" || typeof value === "boolean" ? Number(value) : null;
    if (code !== null && (code < 0 || code > 0x10ffff)) throw new TemplateError("%c arg not in range(0x110000)");
    const text = code === null ? textOf(value) : String.fromCodePoint(code);
    if (text === undefined || size(text) !== 1) throw new TemplateError("%c requires int or char");
    return padded(text, width, left ? "<" : ">", " ");
  }
  const zero = flags.includes("0") && !left;
  if ("diuxXo".includes(kind) && kind !== "") {
    if (!isNumber(value)) throw new TemplateError(`%${kind} format: a number is required, not ${typeName(value)}`);
    const number = numeric(value);
    if (typeof number === "number" && !"diu".includes(kind))
      throw new TemplateError(`%${kind} format: an integer is required, not float`);
    const text = digitsOf(truncated(number), "diu".includes(kind) ? "d" : kind).padStart(digits ?? 0, "0");
    return signed(number < 0, text, sign, width, zero, left ? "<" : ">");
  }
  if (!"eEfFgG".includes(kind) || kind === "")
    throw new TemplateError(kind === "" ? "incomplete format" : `unsupported format character '${kind}'`);
  if (!isNumber(value)) throw new TemplateError(`must be real number, not ${typeName(value)}`);
  const number = real(value);
  return signed(
    isNegative(number),
    floatField(Math.abs(number), kind, digits ?? 6),
    sign,
    width,
    zero,
    left ? "<" : ">",
  );
}

const isNegative = (value: number): boolean => value < 0 || Object.is(value, -0);

function truncated(value: bigint | number): bigint {
  if (typeof value === "bigint") return value;
  if (!Number.isFinite(value)) throw new TemplateError("cannot convert float NaN or infinity to integer");
  return BigInt(Math.trunc(value));
}

function digitsOf(value: bigint, kind: string): string {
  const magnitude = value < 0n ? -value : value;
  const radix = { x: 16, X: 16, o: 8, b: 2 }[kind];
  const text = radix === undefined ? decimal(magnitude) : magnitude.toString(radix);
  return kind === "X" ? text.toUpperCase() : text;
}

function floatField(value: number, kind: string, digits: number): string {
  const upper = kind === kind.toUpperCase();
  const lower = kind.toLowerCase();
  const text = Number.isFinite(value)
    ? lower === "f"
      ? fixedDigits(value, digits)
      : lower === "e"
        ? exponential(value, digits)
        : general(value, Math.max(1, digits))
    : Number.isNaN(value)
      ? "nan"
      : "inf";
  return upper ? text.toUpperCase() : text;
}

/** "%g": ``digits`` significant digits, without zeros at the end. The format without a letter has ".0" for none. */
function general(value: number, digits: number, decimals: "" | ".0" = ""): string {
  const rounded = exponential(value, digits - 1);
  const power = Number(rounded.split("e")[1]);
  if (power >= -4 && power < digits - (decimals === "" ? 0 : 1)) {
    const [whole = "", part = ""] = fixedDigits(value, digits - 1 - power).split(".");
    const shown = part.replace(/0+$/, "");
    return whole + (shown === "" ? decimals : `.${shown}`);
  }
  const [mantissa = "", exponent = ""] = rounded.split("e");
  return `${mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa}e${exponent}`;
}

function signed(negative: boolean, text: string, sign: string, width: number, zero: boolean, align: string): string {
  const mark = negative ? "-" : sign;
  return zero ? mark + padded(text, width - mark.length, ">", "0") : padded(mark + text, width, align, " ");
}

function padded(text: string, width: number, align: string, fill: string): string {
  if (width > MAX_WIDTH) throw new Unsupported("a field's width is too large");
  const missing = Math.max(0, width - size(text));
  if (align === "<") return text + fill.repeat(missing);
  if (align === ">") return fill.repeat(missing) + text;
  const before = Math.floor(missing / 2);
  return fill.repeat(before) + text + fill.repeat(missing - before);
}

export type Lookup = (value: Value, key: Value, isAttribute: boolean) => Value;

/** template.format(*args, **named). ``lookup`` reads {a.b} and {a[b]}. */
export function formatBraces(template: string, args: readonly Value[], named: Named, lookup: Lookup): string {
  let automatic: number | null | undefined;
  const field = (name: string): Value => {
    const [, first = "", rest = ""] = /^([^.[]*)([^]*)$/.exec(name) ?? [];
    let value: Value | undefined;
    if (first === "" || /^\d+$/.test(first)) {
      if (first === "" ? automatic === null : typeof automatic === "number")
        throw new TemplateError("cannot mix automatic field numbering and manual field specification");
      const index = first === "" ? ((automatic as number | undefined) ?? 0) : Number(first);
      automatic = first === "" ? index + 1 : null;
      value = args[index];
    } else value = named.get(first);
    if (value === undefined) throw new TemplateError(`format() lacks the value ${JSON.stringify(first)}`);
    const parts = rest.match(/\.[^.[]+|\[[^\]]+\]/g) ?? [];
    if (parts.join("") !== rest) throw new TemplateError(`the field ${JSON.stringify(name)} is not valid`);
    return parts.reduce<Value>((inner, part) => {
      if (part.startsWith(".")) return lookup(inner, part.slice(1), true);
      const key = part.slice(1, -1);
      return lookup(inner, /^\d+$/.test(key) ? BigInt(key) : key, false);
    }, value);
  };
  const expand = (text: string, depth: number): string => {
    if (depth > 2) throw new TemplateError("Max string recursion exceeded");
    return text.replace(/\{\{|\}\}|\{((?:[^{}]|\{[^{}]*\})*)\}|[{}]/g, (match, inner: string | undefined) => {
      if (match === "{{" || match === "}}") return match.slice(1);
      if (inner === undefined) throw new TemplateError(`Single '${match}' encountered in format string`);
      const [, name = "", conversion, spec = ""] = /^([^!:]*)(?:!([^:]*))?(?::([^]*))?$/.exec(inner) ?? [];
      const value = field(name);
      const converted = conversion === undefined ? value : conversion === "s" ? str(value) : repr(value);
      if (conversion !== undefined && !["s", "r"].includes(conversion))
        throw new Unsupported(`the conversion !${conversion} is not supported`);
      return formatField(converted, expand(spec, depth + 1));
    });
  };
  return expand(template, 0);
}

const SPEC = /^(?:([^])?([<>=^]))?([-+ ]?)(#?)(0?)(\d*)([,_]?)(?:\.(\d+))?([a-zA-Z%]?)$/u;

/** Python's format(value, spec). */
export function formatField(value: Value, spec: string): string {
  if (spec === "") return str(value);
  const match = SPEC.exec(spec);
  if (match === null) throw new TemplateError(`Invalid format specifier '${spec}'`);
  const [, fill, align, sign = "", alternate, zero, width = "", group = "", precision, kind = ""] = match;
  if (alternate !== "") throw new Unsupported("'#' in a format is not supported");
  const filler = fill ?? (zero === "0" ? "0" : " ");
  const text = textOf(value);
  if (text !== undefined) {
    if (kind !== "" && kind !== "s") throw new TemplateError(`Unknown format code '${kind}' for object of type 'str'`);
    if (sign !== "" || group !== "" || align === "=") throw new TemplateError(`format '${spec}' is not for a str`);
    return padded(
      points(text)
        .slice(0, precision === undefined ? undefined : Number(precision))
        .join(""),
      Number(width),
      align ?? "<",
      filler,
    );
  }
  if (!isNumber(value))
    throw value instanceof Undefined ||
      isList(value) ||
      value instanceof Dict ||
      value === null ||
      value instanceof Tuple
      ? new TemplateError(`unsupported format string passed to ${typeName(value)}.__format__`)
      : new Unsupported(`the format '${spec}' of a ${typeName(value)} is not supported`);
  const number = numeric(value);
  const body = numberField(number, kind, precision, spec);
  const negative = typeof number === "bigint" ? number < 0n : isNegative(number);
  const mark = negative ? "-" : sign === "-" ? "" : sign;
  const grouped = group === "" ? body : body.replace(/^\d+/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, group));
  const side = align ?? (zero === "0" ? "=" : ">");
  if (group !== "" && side === "=" && filler === "0") throw new Unsupported(`the format '${spec}' is not supported`);
  return side === "="
    ? mark + padded(grouped, Number(width) - mark.length, ">", filler)
    : padded(mark + grouped, Number(width), side, filler);
}

/** The magnitude of a number without its sign. */
function numberField(number: bigint | number, kind: string, precision: string | undefined, spec: string): string {
  if (typeof number === "bigint" && ["", "d", "b", "o", "x", "X"].includes(kind)) {
    if (precision !== undefined) throw new TemplateError("Precision not allowed in integer format specifier");
    return digitsOf(number, kind);
  }
  const magnitude = Math.abs(real(number));
  if (kind === "%") return `${floatField(magnitude * 100, "f", Number(precision ?? 6))}%`;
  if (kind !== "" && "eEfFgG".includes(kind)) return floatField(magnitude, kind, Number(precision ?? 6));
  if (kind === "") {
    const isShortest = precision === undefined || !Number.isFinite(magnitude);
    return isShortest ? floatRepr(magnitude) : general(magnitude, Math.max(1, Number(precision)), ".0");
  }
  if (["n", "c"].includes(kind)) throw new Unsupported(`the format '${spec}' is not supported`);
  throw new TemplateError(`Unknown format code '${kind}' for object of type '${typeName(number)}'`);
}
