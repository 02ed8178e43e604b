// Writes the multiples of a number as a language of digits.

import { RequestError } from "../errors.js";
import type { Language } from "./automaton.js";
import { literalLanguage } from "./automaton.js";
import { parseRegex } from "./regex.js";
import type { SchemaObject } from "./schema_merge.js";

/** Each listed multiple is a branch of the grammar. */
const MOST_LISTED = 1000;
const DIGITS = 15;

/**
 * The multiples of ``multipleOf`` of at most 15 digits: of 0.1, 0.01 and so on, of a divisor of 1000, and of any integer
 * if the bounds of the schema leave at most 1000. Throws RequestError for others: a grammar of digits cannot enforce
 * them.
 */
export function multiples(schema: SchemaObject, where: string): Language {
  const { multipleOf: step } = schema;
  const decimals = Array.from({ length: 9 }, (_, index) => index + 1).find((count) => step === Number(`1e-${count}`));
  if (decimals !== undefined) return parseRegex(`-?(0|[1-9]\\d{0,${DIGITS - 1}})(\\.\\d{1,${decimals}})?`, where);
  if (typeof step === "number" && Number.isInteger(step) && step >= 1) {
    const bound = (name: string, none: number): number => (schema[name] === undefined ? none : Number(schema[name]));
    const low = Math.max(bound("minimum", -Infinity), bound("exclusiveMinimum", -Infinity));
    const high = Math.min(bound("maximum", Infinity), bound("exclusiveMaximum", Infinity));
    if (high - low < MOST_LISTED * step) {
      const first = Math.ceil(low / step);
      const count = Math.max(0, Math.floor(high / step) - first + 1);
      const listed = Array.from({ length: count }, (_, index) => literalLanguage(String((first + index) * step)));
      return { kind: "choice", parts: listed };
    }
    const digits = [0, 1, 2, 3].find((each) => 10 ** each % step === 0);
    if (digits === 0) return parseRegex(`-?(0|[1-9]\\d{0,${DIGITS - 1}})`, where);
    if (digits !== undefined) {
      const short = Array.from({ length: 10 ** digits / step }, (_, index) => String(index * step));
      const ends = short.map((each) => each.padStart(digits, "0"));
      return parseRegex(`-?(${short.join("|")}|[1-9]\\d{0,${DIGITS - 1 - digits}}(${ends.join("|")}))`, where);
    }
  }
  throw new RequestError(
    `${where}: multipleOf ${JSON.stringify(step)} is not supported: a grammar of digits can hold 0.1, 0.01 and so on, ` +
      "the divisors of 1000, and integers with a minimum and a maximum that leave at most 1000 values; add these " +
      "bounds, or remove it",
    { keyword: "multipleOf" },
  );
}
