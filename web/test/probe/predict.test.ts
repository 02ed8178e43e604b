import { expect, test } from "vitest";

import type { StepTimes } from "../../src/probe/predict.js";
import { between, exactly, firstTokenMs, predictDecode, predictFirstToken, tokenMs } from "../../src/probe/predict.js";

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
  between: 1,
  latency: 2,
  host: 0.1,
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
  expect(tokenMs(TIMES, context).ms).toBeCloseTo(ms + 4 + 1);
});

test("a prompt is read in chunks, each behind the earlier ones", () => {
  // Head and latency; a full chunk; another one behind 64 tokens; and 16 tokens behind 128.
  expect(firstTokenMs(TIMES, 64).ms).toBeCloseTo(6 + 73);
  expect(firstTokenMs(TIMES, 144).ms).toBeCloseTo(6 + 73 + (73 + 0.5 * 64) + (25 + (0.5 * 128 * 16) / 64));
});

test("the host's time is a step's, if the device needs less", () => {
  expect(tokenMs({ ...TIMES, host: 40 }, 256).ms).toBe(40);
});

test("an interval contains the prediction, and a device that slows down widens it", () => {
  const steady = predictDecode(TIMES, 256, 1);
  expect(steady.tokens_per_second).toBeCloseTo(1000 / 15);
  expect(steady.low).toBeLessThan(steady.tokens_per_second);
  expect(steady.high).toBeGreaterThan(steady.tokens_per_second);
  expect(predictDecode(TIMES, 256, 0.5).low).toBeCloseTo(steady.low / 2);
  const first = predictFirstToken(TIMES, 64, 1);
  expect(first.seconds).toBeCloseTo(0.079);
  expect([first.low < first.seconds, first.high > first.seconds]).toEqual([true, true]);
});
