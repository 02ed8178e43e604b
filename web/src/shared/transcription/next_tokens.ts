// Which tokens may follow in a text with timestamps. Radford et al. 2022: timestamps come in pairs, the end of a segment
// and the start of the next one, and never go back.

import type { SpeechModel } from "./speech.js";
import { firstTimestamp } from "./speech.js";

/** What the rules read of a model: they are asked once for each token. */
export type TimestampRules = Pick<SpeechModel, "ends" | "max_initial_timestamp" | "no_timestamps">;

/** Tokens from the first number on, up to and without the second one. */
type Range = readonly [number, number];

export interface NextTokens {
  /** The tokens that must not follow. */
  readonly banned: readonly Range[];
  /** Whether it is the first token, before which more of them must not follow (`suppressed_first`). */
  readonly isFirst: boolean;
  /**
   * The first timestamp, if one must follow wherever the sum of their probabilities exceeds that of every other token;
   * null in a text without timestamps.
   */
  readonly preferred: number | null;
}

/** What may follow the tokens that were ``written`` after the prompt, of a vocabulary of ``size`` tokens. */
export function nextTokens(
  model: TimestampRules,
  written: readonly number[],
  timestamps: boolean,
  size: number,
): NextTokens {
  const isFirst = written.length === 0;
  if (!timestamps || model.no_timestamps === null) return { banned: [], isFirst, preferred: null };
  const first = firstTimestamp(model);
  const banned: Range[] = [[model.no_timestamps, first]];
  if (isFirst) {
    banned.push([0, first]);
    if (model.max_initial_timestamp !== null) banned.push([first + model.max_initial_timestamp + 1, size]);
    return { banned, isFirst, preferred: first };
  }
  const isStamp = (token: number | undefined): boolean => token !== undefined && token >= first;
  const [before, last] = [written.at(-2), written.at(-1)];
  const stamped = isStamp(last);
  const paired = stamped && (before === undefined || isStamp(before));
  // Text begins after a pair, and after the first one. A single one ends a segment: another or the end follows.
  if (paired) banned.push([first, size]);
  else if (stamped) banned.push([0, Math.min(...model.ends)]);
  const latest = written.findLast(isStamp);
  if (latest !== undefined) {
    // The end of a segment may be the start of the next one; otherwise no time passes twice.
    banned.push([first, stamped && !paired ? latest : latest + 1]);
  }
  return { banned, isFirst, preferred: first };
}
