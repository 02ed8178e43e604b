import { expect, test } from "vitest";

import { fittedPolicy, ownPolicy, policyWords, privacyWords, withLock } from "../../page/policy.js";
import type { Policy } from "../../src/shared/decision/policy.js";
import { PrivateCheck } from "../../src/shared/decision/privacy.js";

test.each([
  [0.28, "answers if it is ahead by more than 28 points"],
  [0, "answers if it is more likely to be right"],
  [-0.1, "answers unless it is more than 10 points behind"],
])("the words for a predictor's threshold of %d", (threshold, words) => {
  expect(policyWords({ mode: "auto", quality: { predictor: {}, threshold } }, true)).toContain(words);
  expect(policyWords({ mode: "auto", quality: { predictor: null, threshold } }, true)).not.toContain("points");
});

test.each([
  ["nearfar-demo", "other"],
  ["other", "demo-far"],
  ["nearfar-demo", null],
  [null, "demo-far"],
])("near %s and far %s have no fitted policy", async (near, far) => {
  expect(await fittedPolicy(near, far, {})).toBeNull();
});

test.each(["auto", "prefer-near", "prefer-far"] as const)(
  "without a model on this device, the words in mode %s except private messages",
  (mode) => {
    const words = policyWords(withLock({ version: 1, mode }), false);
    expect(words).toContain("every message that is not private");
    expect(words).toContain("Private messages are not sent");
  },
);

test("without a model on this device, a policy that uses no server answers nothing", () => {
  expect(policyWords(withLock({ version: 1, mode: "near-only" }), false)).toContain("no message is answered");
});

test("the page's own policy masks what a finder finds, and says so", () => {
  const own = withLock(ownPolicy("nearfar", [{ label: "PERSON", kind: "NAME" }]));
  expect(own.private.masks).toMatchObject({
    entities: [{ label: "PERSON", kind: "NAME" }],
    then: "mask",
    strict: false,
  });
  expect(privacyWords(own, true)).toContain("A model on this device finds more of them");
  expect(withLock(ownPolicy("nearfar")).private.masks).toBeNull();
});

const CARD = "my card is 4111 1111 1111 1111";

test("a policy of a file decides by its own patterns, and the page shows this", () => {
  const isPrivate = (policy: Policy): boolean => PrivateCheck.of(policy.private).matches(CARD);
  const own = withLock(ownPolicy("nearfar"));
  expect(isPrivate(own)).toBe(true);
  expect(privacyWords(own, true)).toContain("a card or account number");
  const bare = withLock({ version: 1, mode: "prefer-far" });
  expect(isPrivate(bare)).toBe(false);
  expect(privacyWords(bare, false)).toContain("does not look for card numbers");
  const health = withLock({ version: 1, mode: "prefer-far", private: { patterns: ["diagnosis", "quokka"] } });
  expect(isPrivate(health)).toBe(false);
  expect(privacyWords(health, false)).toContain("one of the 2 patterns of this policy");
  expect(privacyWords(withLock({ version: 1, mode: "far-only" }), false)).toBe("");
});
