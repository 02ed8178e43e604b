// The break-even: short prompts stay near, long ones come from far, and the side changes only for a clear gain.

import { expect, test } from "vitest";

import type { PrefillFacts } from "../../src/prefill/plan.js";
import { decidePrefill } from "../../src/prefill/plan.js";

const RULES = { min_tokens: 256, usd_per_second: 0 };

/** A phone that reads 15 tokens a second, a server that reads 2,000, and 20 Mbit/s; 3.2 kB for each token. */
function facts(tokens: number, other: Partial<PrefillFacts> = {}): PrefillFacts {
  return {
    near_tokens: tokens,
    checked_tokens: 48,
    far_tokens: tokens,
    bytes: 3200 * tokens,
    near_tokens_per_second: 15,
    far_tokens_per_second: 2000,
    bytes_per_second: 2.5e6,
    queue_seconds: 0.1,
    round_trip_seconds: 0.05,
    usd: 0,
    ...other,
  };
}

test("all of far's times count", () => {
  const decision = decidePrefill(facts(4000), RULES, null);
  expect(decision).toMatchObject({ side: "far", reason: "sooner", near_seconds: 4000 / 15 });
  expect(decision.far_seconds).toBeCloseTo(0.1 + 0.05 + 2 + 5.12 + 3.2, 6);
});

test.each<[string, PrefillFacts, "near" | "far" | null, "near" | "far", string]>([
  ["few tokens", facts(255), null, "near", "few_tokens"],
  ["a fast device", facts(1000, { near_tokens_per_second: 2000 }), null, "near", "later"],
  ["a slow link", facts(1000, { bytes_per_second: 1e4 }), null, "near", "later"],
  ["a long queue", facts(1000, { queue_seconds: 100 }), null, "near", "later"],
  ["an unknown device", facts(4000, { near_tokens_per_second: null }), null, "near", "unmeasured"],
  ["an unknown link", facts(4000, { bytes_per_second: null }), null, "far", "explores"],
  [
    "an unknown link behind a slow one",
    facts(300, { bytes_per_second: null, round_trip_seconds: 30 }),
    null,
    "near",
    "later",
  ],
  [
    "an unknown link, and little to gain",
    facts(300, { bytes_per_second: null, near_tokens_per_second: 200 }),
    null,
    "near",
    "unmeasured",
  ],
])("%s", (_, given, before, side, reason) => {
  expect(decidePrefill(given, RULES, before)).toMatchObject({ side, reason });
});

test("a side stays until the other one is clearly sooner", () => {
  // Far takes 4.13 s: 10 % longer or shorter than near.
  const [longer, shorter] = [4.13 * 1.1, 4.13 * 0.9].map((near) =>
    facts(1000, { near_tokens_per_second: 1000 / near, checked_tokens: 0, queue_seconds: 2.3 }),
  );
  if (longer === undefined || shorter === undefined) throw new Error("two are given");
  expect(decidePrefill(longer, RULES, null).far_seconds).toBeCloseTo(4.13, 6);
  for (const given of [longer, shorter]) {
    expect(decidePrefill(given, RULES, "near").side).toBe("near");
    expect(decidePrefill(given, RULES, "far").side).toBe("far");
  }
  expect(decidePrefill(longer, RULES, null).side).toBe("near");
});

test("time is worth what the policy says", () => {
  const given = facts(4000, { usd: 0.01 });
  expect(decidePrefill(given, RULES, null)).toMatchObject({ side: "near", reason: "price" });
  expect(decidePrefill(given, { ...RULES, usd_per_second: 0.0001 }, null).side).toBe("far");
});
