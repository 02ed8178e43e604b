// Rows are rounded as the compiler's reference rounds them; tests/server_fallback/executors/test_prefill_blocks.py
// requires the same of Python.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { KvForm } from "../../src/prefill/rows.js";
import {
  Q4,
  Q8,
  blockWords,
  codesOf,
  fromHalves,
  numbersOf,
  packRows,
  rotate,
  toHalves,
  unpackRows,
} from "../../src/prefill/rows.js";

interface Case {
  readonly head_dim: number;
  readonly values: readonly number[];
  readonly rotated: readonly number[];
  readonly q4?: readonly number[];
  readonly q8: readonly number[];
}
const { cases, halves } = JSON.parse(readFileSync("../tests/conformance/kv_rows.json", "utf8")) as {
  readonly cases: readonly Case[];
  readonly halves: { readonly values: readonly number[]; readonly bits: readonly number[] };
};

test.each(cases)("rows of $head_dim numbers", ({ head_dim: size, values, rotated, q4, q8 }) => {
  const given = Float32Array.from(values);
  const rows = values.length / size;
  const turned = given.slice();
  rotate(turned, size);
  expect([...turned]).toEqual(rotated);
  for (const [form, expected] of [
    [Q8, q8],
    [Q4, q4],
  ] as readonly [KvForm, readonly number[] | undefined][]) {
    if (expected === undefined) continue;
    const words = new Uint32Array(blockWords(form, size, rows));
    packRows(given, form, size, words, 0);
    expect([...words]).toEqual(expected);
    const block = unpackRows(words, 0, form, size, rows);
    expect(block).toEqual(codesOf(given, form, size));
    const largest = (row: number): number => Math.max(...values.slice(row * size, (row + 1) * size).map(Math.abs));
    numbersOf(block, size).forEach((value, index) => {
      // The largest code of the other sign is one step short.
      expect(Math.abs(value - (values[index] ?? NaN))).toBeLessThanOrEqual(
        (largest(Math.floor(index / size)) / form.steps) * 1.01,
      );
    });
  }
});

test("numbers of 16 bits", () => {
  const found = new Uint16Array(halves.values.length);
  toHalves(Float32Array.from(halves.values), found);
  expect([...found]).toEqual(halves.bits);
  const again = new Uint16Array(found.length);
  toHalves(fromHalves(found), again);
  expect(again).toEqual(found);
});
