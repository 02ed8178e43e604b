// What becomes of the text of a window: its segments, where the next window begins, and whether it is good enough.
// Radford et al. 2022, section 4.5.

import type { SpeechModel } from "./speech.js";
import { FRAMES_PER_SECOND, firstTimestamp, secondsPerStamp } from "./speech.js";

/** A part of a transcript; ``start`` and ``end`` are seconds from the start of the sound. */
export interface Segment {
  readonly start: number;
  readonly end: number;
  readonly tokens: readonly number[];
}

/** The segments of a window, and the frames to the start of the next one. */
export interface CutWindow {
  readonly segments: readonly Segment[];
  readonly advance: number;
}

/**
 * The segments of a text, without its end, of a window of ``frames`` from frame ``seek`` on. If the text ends inside a
 * segment, that is left to the next window, which begins at the last closed segment.
 */
export function cutWindow(
  model: SpeechModel,
  tokens: readonly number[],
  { seek, frames }: { readonly seek: number; readonly frames: number },
): CutWindow {
  const first = firstTimestamp(model);
  const each = secondsPerStamp(model);
  const from = seek / FRAMES_PER_SECOND;
  const isStamp = (token: number | undefined): boolean => token !== undefined && token >= first;
  const rounded = (seconds: number): number => Math.round(seconds * 100) / 100;
  const seconds = (stamp: number): number => rounded(from + (stamp - first) * each);
  // Each pair of timestamps ends a segment with its first one.
  const cuts = tokens.flatMap((token, index) => (isStamp(token) && isStamp(tokens[index + 1]) ? [index + 1] : []));
  const endsWithOne = isStamp(tokens.at(-1)) && !isStamp(tokens.at(-2));
  if (cuts.length === 0) {
    const latest = tokens.findLast(isStamp);
    const length = latest !== undefined && latest !== first ? (latest - first) * each : frames / FRAMES_PER_SECOND;
    return { segments: [{ start: from, end: rounded(from + length), tokens }], advance: frames };
  }
  if (endsWithOne) cuts.push(tokens.length);
  const segments: Segment[] = [];
  let start = 0;
  for (const cut of cuts) {
    const own = tokens.slice(start, cut);
    segments.push({ start: seconds(own[0] ?? first), end: seconds(own.at(-1) ?? first), tokens: own });
    start = cut;
  }
  // A text that ends with one timestamp has no more speech behind it.
  const closed = (tokens[start - 1] ?? first) - first;
  const framesPerStamp = each * FRAMES_PER_SECOND;
  const advance = endsWithOne ? frames : Math.round(closed * framesPerStamp);
  // Without progress, the window would be read again forever.
  return { segments, advance: advance > 0 ? Math.min(advance, frames) : frames };
}

/** What was measured of a text. */
export interface TextQuality {
  /** The size of its tokens' bytes, divided by their size after compression. */
  readonly compressionRatio: number;
  readonly meanLogprob: number;
  /** The probability that the window has no speech. */
  readonly noSpeech: number;
}

export interface Thresholds {
  readonly compression_ratio: number;
  readonly logprob: number;
  readonly no_speech: number;
}

/** The temperatures that are tried, one after the other. */
export const TEMPERATURES = [0, 0.2, 0.4, 0.6, 0.8, 1] as const;
export const THRESHOLDS: Thresholds = { compression_ratio: 1.35, logprob: -1, no_speech: 0.6 };

/**
 * Whether a text is used, tried again at the next temperature because it repeats itself or is unlikely, or left out
 * because the window has no speech.
 */
export function judgeText(quality: TextQuality, thresholds: Thresholds): "use" | "retry" | "skip" {
  const unlikely = quality.meanLogprob < thresholds.logprob;
  if (unlikely && quality.noSpeech > thresholds.no_speech) return "skip";
  return unlikely || quality.compressionRatio > thresholds.compression_ratio ? "retry" : "use";
}

/** The frames of a quiet place. */
const QUIET = 20;

/**
 * Where a window ends in a longer sound, of which these are the levels of the frames that it may have at most: in the
 * middle of the last of the quietest places in its last third.
 */
export function quietEnd(levels: readonly number[]): number {
  const from = Math.floor((2 * levels.length) / 3);
  let [best, least, sum] = [levels.length, Infinity, 0];
  for (let end = from; end < levels.length; end++) {
    sum += Number(levels[end]);
    if (end - from >= QUIET) sum -= Number(levels[end - QUIET]);
    if (end - from < QUIET - 1 || sum > least) continue;
    [best, least] = [end + 1 - QUIET / 2, sum];
  }
  return best;
}
