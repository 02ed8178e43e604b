import { expect, test } from "vitest";

import { ExpertSlots } from "../../src/experts/expert_slots.js";

test("an expert stays in its slot until more recently used ones need it", () => {
  const slots = new ExpertSlots(2);
  expect(slots.take([4, 7])).toEqual({
    slots: new Map([
      [4, 0],
      [7, 1],
    ]),
    missing: [4, 7],
  });
  expect(slots.take([7])).toEqual({ slots: new Map([[7, 1]]), missing: [] });
  // 4 was used before 7.
  expect(slots.take([5])).toEqual({ slots: new Map([[5, 0]]), missing: [5] });
  expect(slots.take([4])).toEqual({ slots: new Map([[4, 1]]), missing: [4] });
});

test("a turn takes the experts that are there first, and no more than there are slots", () => {
  const slots = new ExpertSlots(3);
  slots.take([1, 2]);
  const turn = slots.take([8, 9, 2, 7]);
  expect([...turn.slots.keys()].sort((one, other) => one - other)).toEqual([2, 8, 9]);
  expect(turn.missing).toEqual([8, 9]);
  expect(new Set(turn.slots.values()).size).toBe(3);
  expect(slots.take([7]).missing).toEqual([7]);
});

test("the slots of experts that could not be read are free again", () => {
  const slots = new ExpertSlots(2);
  const { missing } = slots.take([3, 6]);
  slots.drop(missing);
  expect(slots.take([6]).missing).toEqual([6]);
  expect(new Set(slots.take([6, 3]).slots.values())).toEqual(new Set([0, 1]));
});
