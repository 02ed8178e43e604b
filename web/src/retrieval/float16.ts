// Conversions between float32 and float16 (IEEE 754 binary16). Float16Array is too new to rely on.

/** Round to the nearest float16, to the even one of two. The values are at most 1 in magnitude. */
export function toFloat16(values: Float32Array, halves: Uint16Array): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (const [index, float] of bits.entries()) {
    const sign = (float >>> 16) & 0x8000;
    const exponent = ((float >>> 23) & 0xff) - 112;
    const mantissa = (float & 0x7fffff) | 0x800000;
    // Below 2^-14 the step between two halves no longer shrinks.
    const shift = exponent > 0 ? 13 : 14 - exponent;
    if (shift > 24) {
      halves[index] = sign;
      continue;
    }
    const kept = mantissa >>> shift;
    const rest = mantissa & ((1 << shift) - 1);
    const middle = 1 << (shift - 1);
    const rounded = kept + (rest > middle || (rest === middle && (kept & 1) === 1) ? 1 : 0);
    // A normal mantissa's leading bit adds one to the exponent, and a carry adds another one.
    halves[index] = sign | (exponent > 0 ? ((exponent - 1) << 10) + rounded : rounded);
  }
}

let table: Float32Array | null = null;

/** The value of each of the 65,536 float16 numbers. */
export function fromFloat16(): Float32Array {
  table ??= Float32Array.from({ length: 1 << 16 }, (_, half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >>> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
  return table;
}
