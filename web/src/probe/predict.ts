// The prediction: from the times of a few layers' steps to those of all of a model's. Pure.

import { PREFILL_CHUNK } from "../runtime/memory.js";
import type { PredictedDecode, PredictedFirstToken } from "./schema.js";

/** A time in ms, and the least and the longest that was measured. */
export interface Span {
  readonly ms: number;
  readonly low: number;
  readonly high: number;
}

/** What was measured of the complete model's steps; the times of lists of steps are those of all their steps. */
export interface StepTimes {
  /** Of one token behind a context: what precedes the choice of a token, by length of context, the shortest first. */
  readonly token: readonly Point[];
  /** Of steps of tokens of a prompt, by their number, without context, the fewest first. */
  readonly prompt: readonly Point[];
  /** What a chunk of a prompt takes besides for each token of context before it. */
  readonly chunkPerContext: Span;
  /** Of the head and the choice of a token. */
  readonly head: Span;
  /** The time of a token's step besides its kernels, when steps follow each other. */
  readonly between: number;
  /** From the end of a step to its token on the host. */
  readonly latency: number;
  /** The host's time for a step. */
  readonly host: number;
}

export interface Point {
  readonly at: number;
  readonly span: Span;
}

/** What the model of a step's time leaves out, as a part of it: see tests/bench/README.md. */
const MODEL_ERROR = 0.2;

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

/** The span at ``x``: on the line between the points around it. Before the first one it is that of the first. */
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
  const on = (key: keyof Span): number => Math.max(0, left.span[key] + share * (right.span[key] - left.span[key]));
  return { ms: on("ms"), low: on("low"), high: on("high") };
}

/** The time from one token to the next, behind ``context`` tokens. */
export function tokenMs(times: StepTimes, context: number): Span {
  const device = sum([between(times.token, context), times.head, exactly(times.between)]);
  return atLeast(device, times.host);
}

/** The time from a prompt to the first token, in chunks. */
export function firstTokenMs(times: StepTimes, promptTokens: number, chunk = PREFILL_CHUNK): Span {
  const spans: Span[] = [times.head, exactly(times.latency)];
  for (let start = 0; start < promptTokens; start += chunk) {
    const tokens = Math.min(chunk, promptTokens - start);
    const context = scale(times.chunkPerContext, (start * tokens) / chunk);
    spans.push(atLeast(sum([between(times.prompt, tokens), context]), times.host));
  }
  return sum(spans);
}

/** ``sustained``: the speed that the device keeps, relative to that of the measurement. */
export function predictFirstToken(times: StepTimes, promptTokens: number, sustained: number): PredictedFirstToken {
  const { ms, low, high } = widened(firstTokenMs(times, promptTokens), sustained);
  return { prompt_tokens: promptTokens, seconds: ms / 1000, low: low / 1000, high: high / 1000 };
}

/** As `predictFirstToken`. */
export function predictDecode(times: StepTimes, context: number, sustained: number): PredictedDecode {
  const { ms, low, high } = widened(tokenMs(times, context), sustained);
  return { context, tokens_per_second: 1000 / ms, low: 1000 / high, high: 1000 / low };
}

/** Longer spans are less likely to be off to one side, so the errors of steps and of the model are not added. */
function widened({ ms, low, high }: Span, sustained: number): Span {
  const slower = Math.max(1, 1 / sustained);
  return {
    ms,
    low: Math.min(low, ms * (1 - MODEL_ERROR)),
    high: Math.max(high, ms * (1 + MODEL_ERROR)) * slower,
  };
}

function atLeast({ ms, low, high }: Span, least: number): Span {
  return { ms: Math.max(ms, least), low: Math.max(low, least), high: Math.max(high, least) };
}
