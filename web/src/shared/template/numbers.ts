// Conversions to numbers, and rounding, as Python's int(), float() and round() do them.

import { fixedDigits, nearest, scaled } from "./digits.js";
import { asciiDigits, points, strip } from "./text.js";
import type { Value } from "./values.js";
import { MAX_DIGITS, TemplateError, Undefined, isNumber, numeric, real, textOf, typeName } from "./values.js";

const FLOAT =
  /^[-+]?(?:(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:e[-+]?\d+(?:_\d+)*)?|inf(?:inity)?|nan)$/i;
const PREFIXES: Readonly<Record<string, number>> = { b: 2, o: 8, x: 16 };

/** float(value); undefined where Python raises TypeError or ValueError. */
export function toFloat(value: Value): number | undefined {
  if (isNumber(value)) return real(value);
  if (value instanceof Undefined) return value.fail();
  const text = textOf(value);
  if (text === undefined) return undefined;
  const body = asciiDigits(strip(text, undefined, "lr"));
  if (!FLOAT.test(body)) return undefined;
  const word = /(inf|nan)/i.exec(body)?.[1]?.toLowerCase();
  if (word === undefined) return Number(body.replaceAll("_", ""));
  return word === "nan" ? NaN : body.startsWith("-") ? -Infinity : Infinity;
}

/** int(value, base); undefined where Python raises TypeError or ValueError. */
export function toInteger(value: Value, base: number): bigint | undefined {
  if (typeof value === "number") {
    if (Number.isNaN(value)) return undefined;
    if (!Number.isFinite(value)) throw new TemplateError("cannot convert float infinity to integer");
    return BigInt(Math.trunc(value));
  }
  if (isNumber(value)) return BigInt(value);
  if (value instanceof Undefined) return value.fail();
  const text = textOf(value);
  if (text === undefined) return undefined;
  if (base !== 0 && (base < 2 || base > 36)) return undefined;
  const [, sign = "", prefix = "", digits = ""] =
    /^([-+]?)(0[box]_?)?([0-9a-z_]+)$/i.exec(asciiDigits(strip(text, undefined, "lr"))) ?? [];
  const named = PREFIXES[(prefix[1] ?? "").toLowerCase()];
  // A prefix of another base is digits: 0b1 is a number of base 16.
  const matches = named !== undefined && (base === 0 || base === named);
  const body = matches ? digits : prefix + digits;
  const radix = matches ? named : base === 0 ? 10 : base;
  if (base === 0 && !matches && /^0[0_]*[1-9]/.test(body)) return undefined;
  return integerOf(body, radix, sign === "-");
}

function integerOf(digits: string, radix: number, negative: boolean): bigint | undefined {
  if (digits === "" || /^_|__|_$/.test(digits)) return undefined;
  const isShort = Math.log2(radix) % 1 === 0 || digits.replaceAll("_", "").length <= MAX_DIGITS;
  if (!isShort) return undefined;
  let result = 0n;
  for (const digit of points(digits.replaceAll("_", ""))) {
    const number = parseInt(digit, radix);
    if (Number.isNaN(number)) return undefined;
    result = result * BigInt(radix) + BigInt(number);
  }
  return negative ? -result : result;
}

/** round(value, precision). */
export function rounded(value: Value, precision: number): Value {
  if (!isNumber(value)) throw new TemplateError(`type ${typeName(value)} doesn't define __round__ method`);
  const number = numeric(value);
  if (typeof number === "bigint") return precision >= 0 ? number : tens(number, -precision);
  if (!Number.isFinite(number)) return number;
  if (precision >= 0) return precision > 323 ? number : Number(fixedDigits(number, precision));
  if (precision < -308) return 0 * number;
  const whole = Number(scaled(Math.abs(number), precision) * 10n ** BigInt(-precision));
  if (!Number.isFinite(whole)) throw new TemplateError("rounded value too large to represent");
  return number < 0 ? -whole : whole;
}

/** An int rounded to a multiple of 10 ** power, a half to an even multiple. */
function tens(value: bigint, power: number): bigint {
  const unit = 10n ** BigInt(power);
  return value < 0n ? -nearest(-value, unit) * unit : nearest(value, unit) * unit;
}
