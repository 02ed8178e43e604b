// From the logits of a token to the next one, and how good a text is.

import { DeviceError } from "../errors.js";
import { largestOf, logprobsOf, logSumExp } from "../runtime/log_sum_exp.js";
import type { SpeechSpec } from "../runtime/manifest.js";
import type { NextTokens } from "../shared/transcription/next_tokens.js";

/** The logits, minus infinity for tokens that must not follow. */
export function allowed(logits: Float32Array, rules: NextTokens, speech: SpeechSpec): Float32Array {
  const scores = logits.slice();
  for (const token of speech.suppressed) scores[token] = -Infinity;
  if (rules.isFirst) for (const token of speech.suppressed_first) scores[token] = -Infinity;
  for (const [start, end] of rules.banned) scores.fill(-Infinity, start, end);
  const { preferred } = rules;
  if (preferred !== null && logSumExp(scores.subarray(preferred)) > largestOf(scores.subarray(0, preferred)))
    scores.fill(-Infinity, 0, preferred);
  return scores;
}

/**
 * The likeliest token, or at a temperature the one that ``draw``, a number in [0, 1), chooses. Throws DeviceError if none
 * is allowed.
 */
export function choose(scores: Float32Array, temperature: number, draw: number): number {
  const largest = largestOf(scores);
  if (!Number.isFinite(largest))
    throw new DeviceError("the rules of timestamps allow no token; the model's suppressed tokens are wrong");
  if (temperature === 0) return scores.indexOf(largest);
  const weights = Float64Array.from(scores, (score) => Math.exp((score - largest) / temperature));
  let rest = draw * weights.reduce((sum, weight) => sum + weight, 0);
  let last = 0;
  for (const [token, weight] of weights.entries()) {
    if (weight === 0) continue;
    last = token;
    rest -= weight;
    if (rest < 0) break;
  }
  return last;
}

/** The log-probability of a token. */
export const logprobOf = (scores: Float32Array, token: number): number => logprobsOf(scores)(token);

/**
 * How much shorter a text's tokens become if repetitions are left out: the size of their bytes, as many for each as the
 * vocabulary needs, divided by the size after zlib.
 */
export async function compressionRatio(tokens: readonly number[], vocabSize: number): Promise<number> {
  const size = Math.floor(Math.log2(vocabSize) / 8) + 1;
  const bytes = Uint8Array.from({ length: tokens.length * size }, (_, index) =>
    Math.floor(Number(tokens[Math.floor(index / size)]) / 256 ** (index % size)),
  );
  const compressed = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return bytes.length / (await new Response(compressed).arrayBuffer()).byteLength;
}
