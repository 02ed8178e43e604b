// Sampling on the host. Logits and a random number flow in, a token id flows out. tests/conformance/sampling.json fixes the results for every runtime.

import { DeviceError } from "../errors.js";

/** Uniform numbers in [0, 1) from a 32-bit seed; one draw a token. Mulberry32, Tommy Ettinger 2017. */
export function mulberry32(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * A token drawn with weights exp((logit - max) / temperature), in float64 and in vocabulary order: the first whose running sum exceeds
 * ``draw`` times the total. Throws DeviceError for logits that are not numbers.
 */
export function sampleToken(logits: readonly number[] | Float32Array, temperature: number, draw: number): number {
  let largest = -Infinity;
  for (const logit of logits) largest = Math.max(largest, logit);
  const weights = new Float64Array(logits.length);
  let total = 0;
  for (let id = 0; id < logits.length; id++) {
    const weight = Math.exp(((logits[id] ?? NaN) - largest) / temperature);
    weights[id] = weight;
    total += weight;
  }
  const threshold = draw * total;
  let sum = 0;
  for (let id = 0; id < weights.length; id++) {
    sum += weights[id] ?? NaN;
    if (sum > threshold) return id;
  }
  throw new DeviceError("The device computed logits that are not numbers; load the model again, or report it with the device's name");
}
