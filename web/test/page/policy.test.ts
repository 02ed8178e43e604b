import { expect, test } from "vitest";

import { fittedPolicy, policyWords } from "../../page/policy.js";

test.each([
  [0.28, "asked if it is ahead by more than 28 points"],
  [0, "asked if it is the likelier"],
  [-0.1, "asked unless it is 10 points behind"],
])("a predictor's threshold of %d is told as it is meant", (threshold, words) => {
  expect(policyWords({ mode: "auto", quality: { predictor: {}, threshold } })).toContain(words);
  expect(policyWords({ mode: "auto", quality: { predictor: null, threshold } })).not.toContain("points");
});

test.each([
  ["nearfar-demo", "other"],
  ["other", "demo-far"],
  ["nearfar-demo", null],
  [null, "demo-far"],
])("near %s and far %s have no fitted policy", async (near, far) => {
  expect(await fittedPolicy(near, far, "nearfar")).toBeNull();
});
