// Whether two candidates compute the same model's vectors.

/** Lengths may differ by this share: a model of 8 bits changes them a little. */
const LENGTH_SHARE = 0.05;

/**
 * Why the vectors cannot be exchanged with those of the candidate ``reference``; null if they can. ``leastCosine``: of
 * the vectors of each text.
 */
export function disagreement(
  vectors: readonly Float32Array[],
  expected: readonly Float32Array[],
  reference: string,
  leastCosine: number,
): string | null {
  for (const [index, vector] of vectors.entries()) {
    const other = expected[index] ?? new Float32Array();
    if (vector.length !== other.length)
      return `its vectors have ${vector.length} dimensions, and those of '${reference}' ${other.length}`;
    const [length, wanted] = [Math.hypot(...vector), Math.hypot(...other)];
    const cosine = vector.reduce((sum, value, element) => sum + value * (other[element] ?? 0), 0) / (length * wanted);
    // Not a number counts as different.
    if (!(cosine >= leastCosine))
      return `the cosine of its vector with that of '${reference}' is ${cosine.toFixed(4)}, and at least ${leastCosine} is the same model`;
    if (Math.abs(length - wanted) > LENGTH_SHARE * wanted)
      return `its vectors have length ${length.toPrecision(3)}, and those of '${reference}' ${wanted.toPrecision(3)}; scale both to 1`;
  }
  return null;
}
