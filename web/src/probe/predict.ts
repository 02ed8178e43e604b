// The prediction: from the times of a model's steps to those of its answers. Pure.

import { PREFILL_CHUNK } from "../runtime/memory.js";
import type { PredictedDecode, PredictedEncode, PredictedFirstToken } from "./schema.js";

/** A time in ms, and the least and the longest that was measured. */
export interface Span {
  readonly ms: number;
  readonly low: number;
  readonly high: number;
}

/** What was measured of the complete model's steps. */
export interface StepTimes {
  /** Of one token behind a context, with the choice of the next one, by length of context, the shortest first. */
  readonly token: readonly Point[];
  /** Of steps of tokens of a prompt, by their number, without context, the fewest first. */
  readonly prompt: readonly Point[];
  /** What a chunk of a prompt takes besides for each token of context before it. */
  readonly chunkPerContext: Span;
  /** Of the head and the choice of a token. */
  readonly head: Span;
  /** From the end of a step to its token on the host. */
  readonly latency: number;
  /** Whether all layers ran in all of these measurements. */
  readonly exact: boolean;
}

export interface Point {
  readonly at: number;
  readonly span: Span;
}

/** What the model of a step's time leaves out, as a part of it: see tests/bench/README.md. */
const MODEL_ERROR = 0.2;
/** The same, if some measurements were left out because the time was spent. */
const MODEL_ERROR_OF_FEW = 0.35;

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return ((sorted[(sorted.length - 1) >> 1] ?? 0) + (sorted[sorted.length >> 1] ?? 0)) / 2;
}

export function spanOf(values: readonly number[]): Span {
  return { ms: median(values), low: Math.min(...values), high: Math.max(...values) };
}

export function sum(spans: readonly Span[]): Span {
  return spans.reduce(
    (total, { ms, low, high }) => ({ ms: total.ms + ms, low: total.low + low, high: total.high + high }),
    { ms: 0, low: 0, high: 0 },
  );
}

export const exactly = (ms: number): Span => ({ ms, low: ms, high: ms });

export function scale({ ms, low, high }: Span, factor: number): Span {
  return { ms: ms * factor, low: low * factor, high: high * factor };
}

export function atLeast({ ms, low, high }: Span, least: number): Span {
  return { ms: Math.max(ms, least), low: Math.max(low, least), high: Math.max(high, least) };
}

export function atMost({ ms, low, high }: Span, most: number): Span {
  return { ms: Math.min(ms, most), low: Math.min(low, most), high: Math.min(high, most) };
}

/**
 * The span at ``x``: on the line between the points around it. Before the first one it is that of the first, and behind
 * the last one at least that of the last.
 */
export function between(points: readonly Point[], x: number): Span {
  const index = Math.max(
    1,
    points.findIndex(({ at }) => at >= x),
  );
  const last = points.length - 1;
  const right = points[x > (points[last]?.at ?? 0) ? last : Math.min(index, last)];
  if (right === undefined) throw new Error("there are no points");
  const left = points[points.indexOf(right) - 1] ?? right;
  const share = right.at === left.at ? 0 : Math.max(0, (x - left.at) / (right.at - left.at));
  const rises = share > 1 ? 0 : -Infinity;
  const on = (key: keyof Span): number => left.span[key] + share * Math.max(rises, right.span[key] - left.span[key]);
  return { ms: on("ms"), low: on("low"), high: on("high") };
}

/** The time from one token to the next, behind ``context`` tokens. */
export function tokenMs(times: StepTimes, context: number): Span {
  return between(times.token, context);
}

/** The time from a prompt to the first token, in chunks. */
export function firstTokenMs(times: StepTimes, promptTokens: number, chunk = PREFILL_CHUNK): Span {
  const spans: Span[] = [times.head, exactly(times.latency)];
  for (let start = 0; start < promptTokens; start += chunk) {
    const tokens = Math.min(chunk, promptTokens - start);
    const context = scale(times.chunkPerContext, (start * tokens) / chunk);
    spans.push(sum([between(times.prompt, tokens), context]));
  }
  return sum(spans);
}

/** ``sustained``: the speed that the device keeps, relative to that of the measurement. */
export function predictFirstToken(times: StepTimes, promptTokens: number, sustained: number): PredictedFirstToken {
  const { ms, low, high } = widened(firstTokenMs(times, promptTokens), sustained, times.exact);
  return { prompt_tokens: promptTokens, seconds: ms / 1000, low: low / 1000, high: high / 1000 };
}

/** As `predictFirstToken`. */
export function predictDecode(times: StepTimes, context: number, sustained: number): PredictedDecode {
  const { ms, low, high } = widened(tokenMs(times, context), sustained, times.exact);
  return { context, tokens_per_second: 1000 / ms, low: 1000 / high, high: 1000 / low };
}

/** As `predictFirstToken`, of a batch of an encoder, by the times of batches; ``alone``: of one text each. */
export function predictEncode(
  points: readonly Point[],
  exact: boolean,
  [texts, tokens]: readonly [texts: number, tokens: number],
  { sustained, roundTripMs, alone }: { sustained: number; roundTripMs: number; alone: boolean },
): PredictedEncode {
  const of = (size: number): Span => {
    const [last] = points.slice(-1);
    if (last === undefined || size <= last.at || points.length > 1) return between(points, size);
    // Only the smallest batch was measured: a larger one is as fast if the device has room beside it.
    const { ms, high } = scale(last.span, size / last.at);
    return { ms, low: last.span.low, high };
  };
  const batch = alone ? scale(of(tokens), texts) : of(texts * tokens);
  const { ms, low, high } = widened(sum([batch, exactly(roundTripMs)]), sustained, exact);
  return { texts, tokens, seconds: ms / 1000, low: low / 1000, high: high / 1000 };
}

/** Longer spans are less likely to be off to one side, so the errors of steps and of the model are not added. */
function widened({ ms, low, high }: Span, sustained: number, exact: boolean): Span {
  const slower = Math.max(1, 1 / sustained);
  const error = exact ? MODEL_ERROR : MODEL_ERROR_OF_FEW;
  return {
    ms,
    low: Math.min(low, ms * (1 - error)),
    high: Math.max(high, ms * (1 + error)) * slower,
  };
}
