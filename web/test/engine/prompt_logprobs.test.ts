import { expect, test } from "vitest";

import { promptLogprob } from "../../src/engine/prompt_logprobs.js";

/**
 * Two rows with the 20 most likely tokens of a vocabulary. The second row has the ids 100 to 119, each with this
 * probability.
 */
function rows(probability: number) {
  const ids = Int32Array.from({ length: 40 }, (_, index) => (index < 20 ? index : 80 + index));
  const logprobs = Float32Array.from({ length: 40 }, (_, index) =>
    index < 20 ? Math.log(0.05) : Math.log(probability),
  );
  return { tokenIds: Int32Array.of(0, 100), alternatives: { ids, logprobs } };
}

test.each([
  ["among the likeliest", 0.04, 119, Math.log(0.04)],
  ["one of the others, which share what is left", 0.04, 3, Math.log(0.2 / 100)],
  ["one of the others, to which rounding leaves less than nothing", 0.05001, 3, -30],
])("a token %s", (_, probability, tokenId, expected) => {
  expect(promptLogprob(rows(probability), 1, tokenId, 120)).toBeCloseTo(expected, 4);
});
