// Writes the numbers between bounds as languages of digits, without exponents and with few digits.

import { RequestError } from "../../errors.js";
import type { Language } from "./automaton.js";
import { single } from "./ebnf.js";

export interface Bounds {
  readonly minimum?: number | undefined;
  readonly maximum?: number | undefined;
  readonly exclusiveMinimum?: number | undefined;
  readonly exclusiveMaximum?: number | undefined;
}

/** A bound at ``value`` / 10^digits. If it is open, the value itself is outside of the range. */
interface End {
  readonly value: bigint;
  readonly open: boolean;
}

// A double holds any number of 15 digits, and any integer up to the second limit.
const LARGEST = 10n ** 15n - 1n;
const LARGEST_INTEGER = 2n ** 53n - 1n;
const EXTRA_DIGITS = 9;
const NAMES = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] as const;
const DIGIT = digit(0, 9);
const DOT = character(".");

/**
 * An integer within the bounds, or null if none exists. Without a bound of 16 digits, an integer has at most 15 digits.
 * Throws RequestError if the bounds allow only integers that a double does not hold.
 */
export function integerRange(bounds: Bounds, where: string): Language | null {
  const [low, high] = ends(bounds, where, LARGEST_INTEGER);
  const digits = decimals(boundsOf(bounds));
  const scale = 10n ** BigInt(digits);
  const first = low.open ? floor(low.value, scale) + 1n : -floor(-low.value, scale);
  const last = high.open ? -floor(-high.value, scale) - 1n : floor(high.value, scale);
  return joined([
    ...(first < 0n ? negated(exact(max(-last, 1n), -first, 0)) : []),
    ...(last >= 0n ? exact(max(first, 0n), last, 0) : []),
  ]);
}

/**
 * A number of at most 15 digits before the point within the bounds, or null if none exists. Throws RequestError for a
 * bound with more digits than that behind the point, or if the bounds allow only larger numbers.
 */
export function numberRange(bounds: Bounds, where: string): Language | null {
  const digits = decimals(boundsOf(bounds));
  const [low, high] = ends(bounds, where, LARGEST);
  const zero: End = { value: 0n, open: false };
  const minus = (end: End): End => ({ value: -end.value, open: end.open });
  return joined([
    ...(low.value < 0n ? negated(magnitudes(high.value > 0n ? zero : minus(high), minus(low), digits)) : []),
    ...(high.value >= 0n ? magnitudes(low.value < 0n ? zero : low, high, digits) : []),
  ]);
}

/** Decimals of ``digits`` places and more from low to high, both at least 0. */
function magnitudes(low: End, high: End, digits: number): Language[] {
  const more = (most: number): Language => ({ kind: "repeat", of: DIGIT, min: 0, max: most });
  const parts: Language[] = [];
  for (let places = 0; places < digits; places++) {
    const step = 10n ** BigInt(digits - places);
    const first = low.open ? floor(low.value, step) + 1n : -floor(-low.value, step);
    const last = high.open ? -floor(-high.value, step) - 1n : floor(high.value, step);
    parts.push(...exact(first, last, places));
  }
  const point = digits === 0 ? [DOT] : [];
  // Digits after the last decimal stay below the next step, so all steps but the highest may have any of them.
  if (low.open && low.value < high.value) {
    parts.push(
      ...exact(low.value, low.value, digits).map((step) =>
        sequence(step, ...point, more(EXTRA_DIGITS - 1), digit(1, 9)),
      ),
    );
  }
  for (const step of exact(low.open ? low.value + 1n : low.value, high.value - 1n, digits)) {
    parts.push(
      ...(digits === 0 ? [step, sequence(step, DOT, DIGIT, more(EXTRA_DIGITS))] : [sequence(step, more(EXTRA_DIGITS))]),
    );
  }
  if (!high.open && (high.value > low.value || (high.value === low.value && !low.open)))
    parts.push(...exact(high.value, high.value, digits));
  return parts;
}

/** The integers from first to last, both at least 0, with a dot before the last ``places`` digits. */
function exact(first: bigint, last: bigint, places: number): Language[] {
  const parts: Language[] = [];
  const widest = Math.max(last.toString().length, places + 1);
  for (let width = places + 1; width <= widest; width++) {
    const low = width === places + 1 ? first : max(first, 10n ** BigInt(width - 1));
    const high = min(last, 10n ** BigInt(width) - 1n);
    if (low > high) continue;
    for (const digits of sameWidth(low.toString().padStart(width, "0"), high.toString().padStart(width, "0"))) {
      if (places > 0) digits.splice(width - places, 0, DOT);
      parts.push(sequence(...digits));
    }
  }
  return parts;
}

/** Lists of digits that together are the numbers from low to high, which have the same length. */
function sameWidth(low: string, high: string): Language[][] {
  if (low === "") return [[]];
  const [first, last] = [Number(low[0]), Number(high[0])];
  const [lowRest, highRest] = [low.slice(1), high.slice(1)];
  const [zeros, nines] = ["0".repeat(lowRest.length), "9".repeat(lowRest.length)];
  const lead = (from: number, to: number, rests: Language[][]): Language[][] =>
    rests.map((rest) => [digit(from, to), ...rest]);
  if (first === last) return lead(first, last, sameWidth(lowRest, highRest));
  const from = lowRest === zeros ? first : first + 1;
  const to = highRest === nines ? last : last - 1;
  return [
    ...(from > first ? lead(first, first, sameWidth(lowRest, nines)) : []),
    ...(from <= to ? lead(from, to, [lowRest.split("").map(() => DIGIT)]) : []),
    ...(to < last ? lead(last, last, sameWidth(zeros, highRest)) : []),
  ];
}

/** The ends of the range within -largest to largest. Bounds outside of that hold anyway. */
function ends(bounds: Bounds, where: string, largest: bigint): [End, End] {
  const digits = decimals(boundsOf(bounds));
  const scale = 10n ** BigInt(digits);
  const values = new Map<(typeof NAMES)[number], bigint>();
  for (const name of NAMES) {
    const bound = bounds[name];
    if (bound === undefined) continue;
    const value = scaled(bound, digits);
    const isLower = name === "minimum" || name === "exclusiveMinimum";
    if (digits > 15 || (isLower ? value : -value) > largest * scale) {
      throw new RequestError(
        `${where}: the bound ${bound} has more than 15 digits before or after the point; give a nearer one`,
      );
    }
    values.set(name, value);
  }
  const size = (value: bigint): bigint => max(value, -value);
  // Few digits by default: each digit is a state, and compiling tries the entire vocabulary on each state.
  const hasLarge = [...values.values()].some(
    (value) => size(value) > LARGEST * scale && size(value) <= largest * scale,
  );
  const limit = (hasLarge ? largest : LARGEST) * scale;
  const [minimum, maximum, above, below] = NAMES.map((name) => {
    const value = values.get(name);
    return value === undefined || size(value) > limit ? null : value;
  });
  let low: End = { value: minimum ?? -limit, open: false };
  if (above != null && above >= low.value) low = { value: above, open: true };
  let high: End = { value: maximum ?? limit, open: false };
  if (below != null && below <= high.value) high = { value: below, open: true };
  return [low, high];
}

function boundsOf(bounds: Bounds): number[] {
  return NAMES.flatMap((name) => bounds[name] ?? []);
}

/** Digits behind the point of the number that has the most. */
export function decimals(values: readonly number[]): number {
  return Math.max(0, ...values.map((value) => (plain(value).split(".")[1] ?? "").length));
}

/** The number times 10^digits, if it has at most that many digits behind the point. */
export function scaled(value: number, digits: number): bigint {
  const [integral = "", fraction = ""] = plain(value).split(".");
  return BigInt(integral + fraction.padEnd(digits, "0"));
}

/** The number without an exponent. */
function plain(value: number): string {
  const [mantissa = "", exponent] = value.toString().split("e");
  if (exponent === undefined) return mantissa;
  const sign = mantissa.startsWith("-") ? "-" : "";
  const [integral = "", fraction = ""] = mantissa.replace("-", "").split(".");
  const shift = Number(exponent);
  if (shift > 0) return sign + integral + fraction.padEnd(shift, "0");
  return `${sign}0.${"0".repeat(-shift - 1)}${integral}${fraction}`;
}

function negated(parts: readonly Language[]): Language[] {
  return parts.map((part) => sequence(character("-"), part));
}

function joined(parts: readonly Language[]): Language | null {
  return parts.length === 0 ? null : { kind: "choice", parts };
}

function sequence(...parts: readonly Language[]): Language {
  return { kind: "sequence", parts };
}

function digit(from: number, to: number): Language {
  return { kind: "set", set: [[0x30 + from, 0x30 + to]] };
}

function character(text: string): Language {
  return { kind: "set", set: single(text) };
}

export function floor(value: bigint, step: bigint): bigint {
  return value / step - (value % step < 0n ? 1n : 0n);
}

function max(left: bigint, right: bigint): bigint {
  return left > right ? left : right;
}

function min(left: bigint, right: bigint): bigint {
  return left < right ? left : right;
}
