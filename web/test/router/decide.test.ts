// The decision: the cases that both languages share, and properties of any situation.

import fc from "fast-check";
import { expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import { paidUsd } from "../../src/shared/decision/costs.js";
import { choose, chooseDescribed, decide } from "../../src/shared/decision/decide.js";
import { textTerms, textFeatures } from "../../src/shared/decision/features.js";
import { parsePolicy } from "../../src/shared/decision/policy.js";
import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import type { Situation } from "../../src/shared/decision/situation.js";
import { UNKNOWN_SPEED, speedAfter } from "../../src/shared/decision/speed.js";
import { VECTORS, situationOf } from "./cases.js";

/** Requires every number, and every null, to be as expected to 1e-9. */
function expectNumbers(
  found: Readonly<Record<string, unknown>>,
  expected: Readonly<Record<string, number | null>>,
): void {
  for (const [name, value] of Object.entries(expected)) {
    if (value === null) expect(found[name], name).toBeNull();
    else
      expect(Math.abs((found[name] as number) - value), name).toBeLessThanOrEqual(1e-9 * Math.max(1, Math.abs(value)));
  }
}

function refusal(act: () => unknown): RequestError {
  try {
    act();
  } catch (error) {
    if (error instanceof RequestError) return error;
    throw error;
  }
  throw new Error("nothing was refused");
}

test.each(VECTORS.cases)("conformance: $name", ({ policy, situation, decision, error }) => {
  if (error !== undefined) {
    const { details } = refusal(() => decide(parsePolicy(policy), situationOf(situation)));
    expect({ code: details.code, param: details.param }).toEqual(error);
    return;
  }
  const { scores, ...decided } = decide(parsePolicy(policy), situationOf(situation));
  const { scores: expectedScores = {}, describes = [], standby, ...expected } = decision ?? {};
  expect(decided).toEqual(expected);
  const parsed = parsePolicy(policy);
  const isPrivate = PrivateCheck.of(parsed.private).isPrivate(situationOf(situation));
  const choice = choose(parsed, situationOf(situation), isPrivate);
  expect(choice.describes.map(({ message, part }) => [message, part])).toEqual(describes);
  expect(standby ?? choice.standby).toBe(choice.standby);
  expectNumbers({ ...scores }, expectedScores);
});

test.each(VECTORS.described)("described: $name", ({ policy, situation, described, is_private: isPrivate, choice }) => {
  const sides = [situationOf(situation), situationOf(described)] as const;
  const { decision, standby, reads_media } = chooseDescribed(parsePolicy(policy), ...sides, isPrivate);
  expect({
    side: decision.side,
    reason: decision.reason,
    private: decision.private,
    standby,
    reads_media,
  }).toEqual(choice);
});

test.each(VECTORS.features)("features of '$text'", ({ text, features, terms }) => {
  const found = textFeatures(text);
  expect(Object.keys(found).sort()).toEqual(Object.keys(features).sort());
  expectNumbers(found, features);
  expect(textTerms(text)).toEqual(terms);
});

test.each(VECTORS.speeds)("speed: $name", ({ finished, speed }) => {
  expectNumbers({ ...finished.reduce(speedAfter, UNKNOWN_SPEED) }, { ...speed });
});

test.each(VECTORS.paid)("paid: $name", ({ output, prompt, usd }) => {
  expect(paidUsd(VECTORS, output, prompt)).toBeCloseTo(usd, 12);
});

test("parsing a parsed policy again changes nothing", () => {
  for (const { policy, decision } of VECTORS.cases) {
    if (decision === undefined) continue;
    const once = parsePolicy(policy);
    expect(parsePolicy(JSON.parse(JSON.stringify(once)))).toEqual(once);
  }
});

const POLICIES = [
  { mode: "near-only" },
  { mode: "far-only" },
  { mode: "prefer-near", private: { patterns: ["[0-9]{3}"] } },
  { mode: "prefer-far", budget: { far_requests_per_day: 10 } },
  { mode: "auto", private: { patterns: ["[0-9]{3}"] }, costs: { usd_per_second: 0.01, max_total_seconds: 3 } },
  { mode: "prefer-far", private: { media: "describe" } },
  { mode: "auto", device: { min_battery: 0.2, max_thermal: "fair" }, quality: { threshold: -1 } },
].map((rest) => parsePolicy({ version: 1, labels: ["public"], ...rest }));
const seconds = fc.option(fc.double({ min: 0, max: 1e6, noNaN: true }));
const count = fc.option(fc.nat(1e6));
const labels = fc.array(fc.constantFrom("public", "private"), { maxLength: 3 });
const text = fc.oneof(fc.string({ unit: "binary" }), fc.stringMatching(/^[0-9]{2,4}$/));
const bothSides = {
  context: count,
  tools: fc.boolean(),
  vision: fc.boolean(),
  video: fc.boolean(),
  sound: fc.boolean(),
  languages: fc.option(fc.array(fc.constantFrom("en", "de"))),
  prompt_tokens: count,
  cached_tokens: fc.nat(1e6),
  prefill_tokens_per_second: seconds,
  decode_tokens_per_second: seconds,
  queue_seconds: fc.double({ min: 0, max: 1e6, noNaN: true }),
  circuit: fc.constantFrom("closed" as const, "open" as const, "half-open" as const),
};
const situations: fc.Arbitrary<Situation> = fc.record({
  messages: fc.array(fc.record({ role: fc.constantFrom("user", "assistant"), content: text, labels }), {
    maxLength: 4,
  }),
  near: fc.record({
    ...bothSides,
    available: fc.boolean(),
    describes: fc.subarray(["picture" as const, "sound" as const]),
    battery: fc.option(fc.double({ min: 0, max: 1, noNaN: true })),
    charging: fc.option(fc.boolean()),
    thermal: fc.option(fc.constantFrom("nominal" as const, "fair" as const, "serious" as const, "critical" as const)),
  }),
  far: fc.record({
    ...bothSides,
    online: fc.boolean(),
    round_trip_seconds: seconds,
    spent_usd_today: fc.nat(10),
    requests_today: fc.nat(20),
  }),
  labels,
  texts: fc.array(text, { maxLength: 2 }),
  pin: fc.constantFrom(null, "near" as const, "far" as const),
  max_tokens: fc.option(fc.integer({ min: 1, max: 1e6 })),
  tools: fc.boolean(),
  media: fc.array(
    fc.record({
      kind: fc.constantFrom("picture" as const, "video" as const, "sound" as const, "file" as const),
      message: fc.option(fc.nat(3)),
      part: fc.option(fc.nat(3)),
    }),
    { maxLength: 2 },
  ),
  language: fc.constantFrom(null, "en", "de"),
  near_signals: fc.constant(null),
  embedding: fc.constant(null),
});

test("every situation is decided, and private requests never go far", () => {
  fc.assert(
    fc.property(fc.constantFrom(...POLICIES), situations, (policy, situation) => {
      const bears = [...situation.labels, ...situation.messages.flatMap((message) => message.labels)];
      const known = [...policy.labels, ...policy.private.labels];
      if (!bears.every((label) => known.includes(label))) {
        expect(refusal(() => decide(policy, situation)).details.code).toBe("unknown_label");
        return;
      }
      const { side, private: isPrivate } = decide(policy, situation);
      const allTexts = [...situation.messages.map(({ content }) => content), ...situation.texts.flat()];
      const found = policy.private.patterns.length > 0 && allTexts.some((part) => /[0-9]{3}/.test(part));
      if (found || bears.some((label) => policy.private.labels.includes(label))) expect(isPrivate).toBe(true);
      if (situation.media.length > 0 && policy.private.media !== "far") expect(isPrivate).toBe(true);
      if (isPrivate || policy.mode === "near-only") expect(side).not.toBe("far");
      if (side === "near") expect(situation.near.available && situation.near.circuit !== "open").toBe(true);
      if (side === "far") expect(situation.far.online && situation.far.circuit !== "open").toBe(true);
      if (situation.pin !== null && side !== null) expect(side).toBe(situation.pin);
    }),
    { numRuns: 300 },
  );
});
