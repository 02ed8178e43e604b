import { expect, test } from "vitest";

import { computeConstant } from "../../src/runtime/memory.js";

test("a rope table contains the scaled cosines and sines of position times frequency for all frequencies", () => {
  const table = computeConstant({
    kind: "rope",
    shape: [3, 2, 2],
    inverse_frequencies: [1, 0.01],
    scale: 1.5,
    first: 0,
  });
  const later = computeConstant({
    kind: "rope",
    shape: [2, 2, 2],
    inverse_frequencies: [1, 0.01],
    scale: 1.5,
    first: 1,
  });
  expect(later).toEqual(table.slice(4));
  const expected = [0, 1, 2].flatMap((position) =>
    [1, 0.01].flatMap((frequency) => [1.5 * Math.cos(position * frequency), 1.5 * Math.sin(position * frequency)]),
  );
  expect([...table]).toEqual([...Float32Array.from(expected)]);
});
