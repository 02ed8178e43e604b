// How far two pages differ, in the steps of their 4-bit codes. Equal numbers have equal codes, but for ties that rounding
// decides; so the measure is sharp even though 4 bits are not.

import type { Rows } from "./rows.js";

/**
 * The mean difference of the elements of each layer, of the layer that differs most: 1 is a step of the row's codes. What
 * is not a number differs infinitely.
 */
export function largestDifference(own: readonly Rows[], theirs: readonly Rows[]): number {
  return own.reduce((most, rows, layer) => {
    const other = theirs[layer];
    const difference = other === undefined ? Infinity : meanDifference(rows, other);
    return difference <= most ? most : Number.isNaN(difference) ? Infinity : difference;
  }, 0);
}

function meanDifference(own: Rows, theirs: Rows): number {
  const headDim = own.codes.length / own.scales.length;
  let sum = 0;
  for (let row = 0; row < own.scales.length; row++) {
    const [scale = 0, other = 0] = [own.scales[row], theirs.scales[row]];
    const step = Math.max(Math.abs(scale), Math.abs(other));
    if (step === 0) continue;
    for (let index = row * headDim; index < (row + 1) * headDim; index++)
      sum += Math.abs((own.codes[index] ?? 0) * scale - (theirs.codes[index] ?? 0) * other) / step;
  }
  return sum / own.codes.length;
}
