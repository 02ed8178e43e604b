import { expect, test } from "vitest";

import type { StepTimes } from "../../src/probe/predict.js";
import {
  between,
  exactly,
  firstTokenMs,
  predictDecode,
  predictEncode,
  predictFirstToken,
  tokenMs,
} from "../../src/probe/predict.js";

const TIMES: StepTimes = {
  token: [
    { at: 256, span: exactly(10) },
    { at: 1024, span: exactly(16) },
  ],
  prompt: [
    { at: 1, span: exactly(10) },
    { at: 16, span: exactly(25) },
    { at: 64, span: exactly(73) },
  ],
  chunkPerContext: exactly(0.5),
  head: { ms: 4, low: 3, high: 5 },
  latency: 2,
  exact: true,
};

test.each([
  [256, 10],
  [640, 13],
  [1024, 16],
  [1792, 22],
  // Attention to fewer keys is faster, but how much was not measured.
  [16, 10],
])("at %i it is on the line", (context, ms) => {
  expect(between(TIMES.token, context).ms).toBeCloseTo(ms);
  expect(tokenMs(TIMES, context).ms).toBeCloseTo(ms);
});

test("a prompt is read in chunks, each behind the earlier ones", () => {
  // Head and latency; a full chunk; another one behind 64 tokens; and 16 tokens behind 128.
  expect(firstTokenMs(TIMES, 64).ms).toBeCloseTo(6 + 73);
  expect(firstTokenMs(TIMES, 144).ms).toBeCloseTo(6 + 73 + (73 + 0.5 * 64) + (25 + (0.5 * 128 * 16) / 64));
});

test("an interval contains the prediction, and a device that slows down widens it", () => {
  const steady = predictDecode(TIMES, 256, 1);
  expect(steady.tokens_per_second).toBeCloseTo(1000 / 10);
  expect(steady.low).toBeLessThan(steady.tokens_per_second);
  expect(steady.high).toBeGreaterThan(steady.tokens_per_second);
  expect(predictDecode(TIMES, 256, 0.5).low).toBeCloseTo(steady.low / 2);
  const first = predictFirstToken(TIMES, 64, 1);
  expect(first.seconds).toBeCloseTo(0.079);
  expect([first.low < first.seconds, first.high > first.seconds]).toEqual([true, true]);
});

test("what was left out for lack of time widens the interval", () => {
  const [all, few] = [predictDecode(TIMES, 256, 1), predictDecode({ ...TIMES, exact: false }, 256, 1)];
  expect(few.tokens_per_second).toBe(all.tokens_per_second);
  expect(few.low).toBeLessThan(all.low);
  expect(few.high).toBeGreaterThan(all.high);
});

test("batches of an encoder are on the line, and those of a model with pages are one text each", () => {
  const points = [
    { at: 16, span: exactly(10) },
    { at: 128, span: exactly(66) },
  ];
  const device = { sustained: 1, roundTripMs: 1, alone: false };
  expect(predictEncode(points, true, [2, 32], device).seconds).toBeCloseTo(0.035);
  expect(predictEncode(points, true, [2, 32], { ...device, alone: true }).seconds).toBeCloseTo(0.037);
  // With one batch only: at most as often its time, at least once.
  const { low, high } = predictEncode(points.slice(0, 1), false, [1, 128], device);
  expect(low).toBeLessThanOrEqual(0.011);
  expect(high).toBeGreaterThanOrEqual(0.081);
});
