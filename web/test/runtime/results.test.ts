// What the bytes of a step mean.

import { expect, test } from "vitest";

import { DeviceError } from "../../src/errors.js";
import { Results } from "../../src/runtime/results.js";
import { lettersBundle } from "../letters_bundle.js";

test("a token whose logits are not numbers is an error, but -1 for a draft", () => {
  const results = new Results(lettersBundle().manifest);
  const { buffer } = Int32Array.of(3, -1);
  expect(() => results.readStep(buffer, 2, {})).toThrow(DeviceError);
  expect([...results.readStep(buffer, 2, { notNumbers: true }).tokenIds]).toEqual([3, -1]);
});
