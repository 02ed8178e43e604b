import { expect, test } from "vitest";

import { toInteger } from "../../src/shared/template/numbers.js";

test("an int is read from the decimal digits of any script, and from no other numbers", () => {
  expect(toInteger("١٢", 10)).toBe(12n);
  expect(toInteger(" -1_0 ", 10)).toBe(-10n);
  expect(toInteger("²", 10)).toBeUndefined();
});
