import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { fillPlane, words } from "../../src/probe/planes.js";
import type { PlaneEntry } from "../../src/runtime/manifest.js";

interface Case {
  readonly dtype: PlaneEntry["dtype"];
  readonly number: number;
  readonly size: number;
  readonly values: readonly number[] | null;
  readonly bytes: string;
}

const cases = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/probe_planes.json", import.meta.url), "utf8"),
) as readonly Case[];

test.each(cases)("plane $number of $dtype is the one that the compiler makes", (each) => {
  const bytes = new Uint8Array(each.size);
  fillPlane(bytes, each.dtype, each.number, each.values, words());
  expect(Buffer.from(bytes).toString("hex")).toBe(each.bytes);
});

test("a plane that is longer than the words repeats them", () => {
  const all = words();
  const bytes = new Uint8Array(4 * (all.length + 3));
  fillPlane(bytes, "uint32", 0, null, all);
  const found = new Uint32Array(bytes.buffer);
  expect([...found.subarray(all.length)]).toEqual([...all.subarray(0, 3)]);
});
