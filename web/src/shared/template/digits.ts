// Exact decimal digits of floats, and exact quotients of ints, rounded to even as Python rounds them.

/** No float has more decimals. */
const MOST_DECIMALS = 1074;

/** The int nearest to value * 10 ** places, for a finite value from 0 up. */
export function scaled(value: number, places: number): bigint {
  let [mantissa, twos] = [value, 0];
  // Doubling is exact.
  for (; !Number.isInteger(mantissa); twos += 1) mantissa *= 2;
  const tens = 10n ** BigInt(Math.abs(places));
  return places < 0
    ? nearest(BigInt(mantissa), tens << BigInt(twos))
    : nearest(BigInt(mantissa) * tens, 1n << BigInt(twos));
}

/** The int nearest to value / unit, for a value from 0 up. */
export function nearest(value: bigint, unit: bigint): bigint {
  const low = value / unit;
  const twice = 2n * (value % unit);
  return twice > unit || (twice === unit && low % 2n === 1n) ? low + 1n : low;
}

/** A finite number with ``digits`` decimals. */
export function fixedDigits(value: number, digits: number): string {
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const decimals = Math.min(digits, MOST_DECIMALS);
  const text = String(scaled(Math.abs(value), decimals)).padStart(decimals + 1, "0");
  const whole = text.slice(0, text.length - decimals);
  return sign + (digits === 0 ? whole : `${whole}.${text.slice(whole.length).padEnd(digits, "0")}`);
}

/** A finite value from 0 up with one digit, ``digits`` decimals and an exponent. */
export function exponential(value: number, digits: number): string {
  const decimals = Math.min(digits, MOST_DECIMALS);
  let power = Number(value.toExponential().split("e")[1]);
  let text = String(scaled(value, decimals - power));
  if (text.length > decimals + 1) {
    power += 1;
    text = text.slice(0, -1);
  } else if (value > 0 && text.length <= decimals) {
    // The shortest digits, which toExponential() writes, are rounded up to a power of ten.
    power -= 1;
    text = String(scaled(value, decimals - power));
  }
  const mantissa = text.padEnd(digits + 1, "0");
  const exponent = `${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  return `${mantissa[0] ?? ""}${digits > 0 ? "." : ""}${mantissa.slice(1)}e${exponent}`;
}

/** left / right as the nearest float; infinite if it is too large for one, undefined if too small for exact digits. */
export function quotient(left: bigint, right: bigint): number | undefined {
  const [value, by] = [left < 0n ? -left : left, right < 0n ? -right : right];
  const sign = left < 0n === right < 0n ? 1 : -1;
  // Of 66 bits or more, one that stands for all others decides between two floats.
  const shift = Math.max(0, 66 + bits(by) - bits(value));
  const shifted = value << BigInt(shift);
  const whole = Number((shifted / by) | (shifted % by === 0n ? 0n : 1n));
  if (shift > 1000 && value > 0n) return undefined;
  return sign * whole * 2 ** -shift;
}

const bits = (value: bigint): number => value.toString(2).length;
