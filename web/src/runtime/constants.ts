// Computes the constants that a bundle describes instead of containing them.

import type { ConstantEntry } from "./manifest.js";

/** The array of a constant, in the shape of its entry. */
export function computeConstant(entry: ConstantEntry): Float32Array<ArrayBuffer> {
  // "rope" is the only kind; the type check fails here when there is a second one.
  entry.kind satisfies "rope";
  return ropeTable(entry.inverse_frequencies, entry.shape[0] ?? 0, entry.scale);
}

/**
 * (positions, R/2, 2) float32: ``scale`` times cosine and sine of position * inverse frequency, computed in float64.
 */
function ropeTable(inverseFrequencies: readonly number[], positions: number, scale: number): Float32Array<ArrayBuffer> {
  const table = new Float32Array(positions * inverseFrequencies.length * 2);
  let next = 0;
  for (let position = 0; position < positions; position++) {
    for (const frequency of inverseFrequencies) {
      table[next++] = scale * Math.cos(position * frequency);
      table[next++] = scale * Math.sin(position * frequency);
    }
  }
  return table;
}
