// Measures how long candidates take for a sample of texts.

import type { EncoderCandidate } from "./candidate.js";
import { vectorsOf } from "./candidate.js";

export interface SampleMeasurement {
  /** The sample's name. */
  readonly sample: string;
  readonly texts: number;
  /** The mean number of characters of a text. */
  readonly characters: number;
  /** By candidate: the median of its rounds. */
  readonly milliseconds: Readonly<Record<string, number>>;
  readonly fastest: string;
}

const ROUNDS = 3;
/** No further round begins after this time. */
const BUDGET_MS = 3000;
/** A candidate that takes this many times as long in its first call, which may compile, is not measured again. */
const HOPELESS = 10;

/**
 * The candidates alternate, after a call of each that does not count. ``failed`` gets the candidates that throw. Throws
 * the signal's reason.
 */
export async function measureSample(
  candidates: readonly EncoderCandidate[],
  sample: string,
  texts: readonly string[],
  failed: (candidate: EncoderCandidate, error: unknown) => void,
  signal: AbortSignal,
): Promise<SampleMeasurement | null> {
  const times = new Map<EncoderCandidate, number[]>();
  const time = async (candidate: EncoderCandidate): Promise<number | null> => {
    const start = performance.now();
    try {
      await vectorsOf(candidate, texts, signal);
      return performance.now() - start;
    } catch (error) {
      signal.throwIfAborted();
      times.delete(candidate);
      failed(candidate, error);
      return null;
    }
  };
  const firsts = new Map<EncoderCandidate, number>();
  for (const candidate of candidates) {
    const took = await time(candidate);
    if (took !== null) firsts.set(candidate, took);
  }
  const shortest = Math.min(...firsts.values());
  for (const [candidate, took] of firsts) times.set(candidate, took > HOPELESS * shortest ? [took] : []);
  const measured = [...times].filter(([, each]) => each.length === 0).map(([candidate]) => candidate);
  const start = performance.now();
  for (let round = 0; round < ROUNDS && (round === 0 || performance.now() - start < BUDGET_MS); round++) {
    for (const candidate of measured) {
      const took = times.has(candidate) ? await time(candidate) : null;
      if (took !== null) times.get(candidate)?.push(took);
    }
  }
  const milliseconds = Object.fromEntries([...times].map(([{ name }, each]) => [name, median(each)]));
  const [best] = Object.entries(milliseconds).sort(([, a], [, b]) => a - b);
  if (best === undefined) return null;
  const characters = texts.reduce((sum, text) => sum + text.length, 0) / texts.length;
  return { sample, texts: texts.length, characters, milliseconds, fastest: best[0] };
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return ((sorted[middle] ?? NaN) + (sorted[sorted.length - 1 - middle] ?? NaN)) / 2;
}
