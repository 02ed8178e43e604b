// Writes the multiples of a number as a language of digits.

import { RequestError } from "../../errors.js";
import type { Language } from "./automaton.js";
import { literalLanguage } from "./automaton.js";
import { decimals, floor, scaled } from "./number_range.js";
import type { SchemaObject } from "./schema_merge.js";

/** Each listed multiple is a branch of the grammar. Otherwise each remainder is a state, in each length. */
const MOST_LISTED = 300;
const MOST_REMAINDERS = 1000n;
const MOST_PLACES = 9;

/**
 * The decimals that ``multipleOf`` allows: each by itself if the bounds leave few, else by their remainder. It has
 * numbers outside of the bounds too. Throws RequestError for a step of too many remainders.
 */
export function multiples(schema: SchemaObject, where: string): Language {
  const step = schema.multipleOf;
  if (typeof step !== "number" || !Number.isFinite(step) || step <= 0)
    throw new RequestError(`${where}.multipleOf must be a number above 0`, { keyword: "multipleOf" });
  const places = decimals([step]);
  const bounds = (names: readonly string[]): number[] =>
    names.flatMap((name) => (schema[name] === undefined ? [] : [schema[name] as number]));
  const lows = bounds(["minimum", "exclusiveMinimum"]);
  const highs = bounds(["maximum", "exclusiveMaximum"]);
  const digits = decimals([step, ...lows, ...highs]);
  const whole = scaled(step, digits);
  if (lows.length > 0 && highs.length > 0) {
    const first = lows.map((low) => -floor(-scaled(low, digits), whole)).reduce((a, b) => (a > b ? a : b));
    const last = highs.map((high) => floor(scaled(high, digits), whole)).reduce((a, b) => (a < b ? a : b));
    const count = Number(last - first) + 1;
    if (count <= MOST_LISTED / (places + 1)) {
      const values = Array.from({ length: Math.max(count, 0) }, (_, index) => (first + BigInt(index)) * whole);
      const texts = values.flatMap((value) => spelled(value, digits, places));
      return { kind: "choice", parts: texts.map(literalLanguage) };
    }
  }
  const remainders = whole / 10n ** BigInt(digits - places);
  if (remainders > MOST_REMAINDERS || places > MOST_PLACES) throw unsupportedMultiple(step, where);
  return { kind: "multiple", whole: Number(remainders), places };
}

export function unsupportedMultiple(step: unknown, where: string): RequestError {
  return new RequestError(
    `${where}: multipleOf ${JSON.stringify(step)} is not supported, because its grammar would be too large; add a ` +
      `minimum and a maximum that leave at most ${MOST_LISTED / 10} values, or remove it`,
    { keyword: "multipleOf" },
  );
}

/** ``value`` / 10^digits with at most ``places`` digits behind the point, also with zeros at its end. */
function spelled(value: bigint, digits: number, places: number): string[] {
  const sign = value < 0n ? "-" : "";
  const text = (value < 0n ? -value : value).toString().padStart(digits + 1, "0");
  const [integral, fraction] = [text.slice(0, text.length - digits), text.slice(text.length - digits)];
  const least = fraction.replace(/0+$/, "").length;
  return Array.from({ length: places - least + 1 }, (_, index) => {
    const count = least + index;
    return `${sign}${integral}${count > 0 ? "." : ""}${fraction.slice(0, count)}`;
  });
}
