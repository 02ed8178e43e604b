// Samples tokens on the host, as compiler/ir/sampling.py defines it. tests/conformance/sampling.json contains the
// results that every runtime must produce.

import type { SettingsRow } from "../runtime/batch.js";
import { IN_PROMPT, SAMPLE_FLAGS } from "../runtime/batch.js";
import { COLUMNS } from "../shared/sampling.js";
import { largest } from "./largest.js";

/** The states of a slot, in the form in which the `StepRunner` receives them; null for none. */
export interface SlotStates {
  counts: Int32Array | null;
  bias: Float32Array | null;
  mask: Int32Array | null;
}

/** The logit of a token that is not allowed: finite, and lower than all logits that a model computes. */
const MASKED = -3.0e38;
/** The number of most likely tokens that are considered first for top_p, which usually needs few. */
const TOP_P_FIRST = 64;
const TOP_P_GROWTH = 16;

export function settingsAt(settings: readonly number[], row: number): SettingsRow {
  // Every runtime reads the settings as float32.
  const at = (column: number): number => Math.fround(settings[COLUMNS.length * row + column] ?? NaN);
  return Object.fromEntries(COLUMNS.map((name, column) => [name, at(column)])) as SettingsRow;
}

/**
 * The logits (V,) after the penalties, then the bias, then the mask of the slot, as selected by ``flags``. The same
 * array if ``flags`` is 0.
 */
export function adjustLogits(
  logits: Float32Array,
  settings: SettingsRow,
  flags: number,
  { counts, bias, mask }: SlotStates,
): Float32Array {
  if (flags === 0) return logits;
  const adjusted = logits.slice();
  if ((flags & SAMPLE_FLAGS.counts) !== 0 && counts !== null) penalize(adjusted, settings, counts);
  if ((flags & SAMPLE_FLAGS.bias) !== 0 && bias !== null)
    bias.forEach((value, id) => (adjusted[id] = (adjusted[id] ?? 0) + value));
  if ((flags & SAMPLE_FLAGS.mask) !== 0 && mask !== null) {
    for (let id = 0; id < adjusted.length; id++)
      if ((((mask[id >> 5] ?? 0) >> (id & 31)) & 1) === 0) adjusted[id] = MASKED;
  }
  return adjusted;
}

/**
 * Apply the repetition penalty (Keskar et al. 2019) to tokens of the prompt or the answer, and the other two penalties
 * to tokens of the answer.
 */
function penalize(
  logits: Float32Array,
  { repetitionPenalty, frequencyPenalty, presencePenalty }: SettingsRow,
  counts: Int32Array,
): void {
  for (let id = 0; id < logits.length; id++) {
    const count = counts[id] ?? 0;
    if (count === 0) continue;
    const times = count & (IN_PROMPT - 1);
    const logit = logits[id] ?? 0;
    const repeated = Math.fround(logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty);
    const repeatedOften = Math.fround(repeated - Math.fround(times * frequencyPenalty));
    logits[id] = times > 0 ? repeatedOften - presencePenalty : repeated;
  }
}

/** The next token from logits (V,); -1 if one of them is not a number. */
export function chooseToken(logits: Float32Array, settings: SettingsRow): number {
  const mostLikely = argmax(logits);
  if (mostLikely < 0 || settings.temperature === 0) return mostLikely;
  const { temperature, topK, topP, minP, draw } = settings;
  const best = topK > 0 && topK < logits.length ? largest(logits, topK) : null;
  const weights = weightsOf(
    logits,
    logits[mostLikely] ?? 0,
    temperature,
    best === null ? -Infinity : (logits[best.at(-1) ?? 0] ?? 0),
  );
  if (topP < 1) keepMass(logits, weights, topP, best);
  let sum = 0;
  for (let id = 0; id < weights.length; id++) {
    const weight = weights[id] ?? 0;
    if (weight < minP) weights[id] = 0;
    else sum += weight;
  }
  const goal = draw * sum;
  let reached = 0;
  let last = mostLikely;
  for (let id = 0; id < weights.length; id++) {
    const weight = weights[id] ?? 0;
    if (weight === 0) continue;
    reached += weight;
    last = id;
    if (reached > goal) break;
  }
  return last;
}

/** exp((logit - most) / temperature), (V,); 0 for logits below ``least``. */
function weightsOf(logits: Float32Array, most: number, temperature: number, least: number): Float64Array {
  const weights = new Float64Array(logits.length);
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id] ?? 0;
    if (logit >= least) weights[id] = Math.exp((logit - most) / temperature);
  }
  return weights;
}

/**
 * Set all weights to 0 except the largest ones that together reach ``topP`` of the sum, and weights equal to them.
 * ``best``: the tokens with weights above 0, if they are known.
 */
function keepMass(logits: Float32Array, weights: Float64Array, topP: number, best: Int32Array | null): void {
  let sum = 0;
  for (const weight of weights) sum += weight;
  const least = leastOfMass(logits, weights, topP * sum, best);
  for (let id = 0; id < weights.length; id++) if ((logits[id] ?? 0) < least) weights[id] = 0;
}

/** The lowest of the largest logits whose weights together reach ``goal``. */
function leastOfMass(logits: Float32Array, weights: Float64Array, goal: number, best: Int32Array | null): number {
  for (let count = best?.length ?? TOP_P_FIRST; ; count *= TOP_P_GROWTH) {
    let reached = 0;
    for (const id of best ?? largest(logits, count)) {
      reached += weights[id] ?? 0;
      if (reached >= goal) return logits[id] ?? 0;
    }
    // The sum in this order may be lower because of rounding; and other tokens may have the same logit as the last of
    // the best.
    if (best !== null || count >= logits.length) return -Infinity;
  }
}

/** The index of the first largest logit; -1 if a logit is not a finite number. */
function argmax(logits: Float32Array): number {
  let best = -1;
  let most = -Infinity;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id] ?? NaN;
    if (!Number.isFinite(logit)) return -1;
    if (logit <= most) continue;
    most = logit;
    best = id;
  }
  return best;
}
