import { expect, test } from "vitest";

import { MAX_WORKGROUPS, workgroups } from "../../src/runtime/schedule.js";

test("a grid within the limit is not changed", () => {
  expect(workgroups(MAX_WORKGROUPS, 3)).toEqual([MAX_WORKGROUPS, 3, 1]);
});

test("an x beyond the limit spills into z and covers every workgroup", () => {
  expect(workgroups(MAX_WORKGROUPS + 1, 2)).toEqual([MAX_WORKGROUPS, 2, 2]);
  expect(workgroups(3 * MAX_WORKGROUPS, 1)).toEqual([MAX_WORKGROUPS, 1, 3]);
});

test("a grid with a zero is null", () => {
  expect(workgroups(0, 5)).toBeNull();
  expect(workgroups(5, 0)).toBeNull();
});
