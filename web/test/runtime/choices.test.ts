import { expect, test } from "vitest";

import type { Choices } from "../../src/runtime/choices.js";
import { NO_CHOICES, arrange, structural, variantName } from "../../src/runtime/choices.js";
import type { Condition } from "../../src/runtime/manifest.js";
import { chooseRow } from "../../src/runtime/variants.js";

interface Row {
  readonly kernels: readonly string[];
  readonly when: Condition;
}

const row = (name: string, when: Condition = null): Row => ({ kernels: name.split("+"), when });
const DECODE: Condition = ["==", "S", "B"];
const ROWS = [
  row("fused", ["and", DECODE, ["<=", "T", 256]]),
  row("split+merge", DECODE),
  row("split 2+merge", DECODE),
  row("tile", ["==", "B", 1]),
  row("plain"),
  row("never"),
];
const chosen = (dims: { S: number; B: number; T: number }, choices: Partial<Choices> = {}): string =>
  variantName(chooseRow(arrange(ROWS, "attention", { ...NO_CHOICES, ...choices }), dims));
const decode = { S: 1, B: 1, T: 10 };
const long = { S: 1, B: 1, T: 1000 };
const prefill = { S: 9, B: 1, T: 9 };
const ragged = { S: 9, B: 2, T: 9 };

test("a condition's equalities are structural, its inequalities are not", () => {
  expect(structural(null)).toBe(null);
  expect(structural(DECODE)).toEqual(DECODE);
  expect(structural(["<=", "S", 4])).toBe(null);
  expect(structural(["and", ["and", [">", "T", 1], DECODE], ["<", "S", 9]])).toEqual(DECODE);
  expect(structural(["and", DECODE, ["==", "B", 1]])).toEqual(["and", DECODE, ["==", "B", 1]]);
});

test("without choices the rows are unchanged, except for alternatives and rows after one without a condition", () => {
  expect(arrange(ROWS, "attention", NO_CHOICES).map(variantName)).toEqual(["fused", "split+merge", "tile", "plain"]);
  expect([chosen(decode), chosen(long), chosen(prefill), chosen(ragged)]).toEqual([
    "fused",
    "split+merge",
    "tile",
    "plain",
  ]);
});

test("a row that is off is replaced by the next one that fits, even one with the same condition", () => {
  expect(chosen(long, { off: new Set(["split+merge"]) })).toBe("split 2+merge");
  expect(chosen(decode, { off: new Set(["fused", "split+merge", "split 2+merge"]) })).toBe("tile");
  expect(chosen(ragged, { off: new Set(["plain"]) })).toBe("never");
});

test("without other rows, a row also runs for sizes that it was not meant for, but never if it would be wrong", () => {
  const off = new Set(["split+merge", "split 2+merge", "tile", "plain", "never"]);
  expect(chosen(long, { off })).toBe("fused");
  expect(() => chosen(prefill, { off })).toThrow("no variant fits");
});

test("a row in front is chosen if both its record's condition and its own structural condition hold", () => {
  const front = { attention: [{ when: ["<=", "T", 64], variant: "split 2+merge" }] } satisfies Choices["front"];
  expect([chosen(decode, { front }), chosen(long, { front }), chosen(prefill, { front })]).toEqual([
    "split 2+merge",
    "split+merge",
    "tile",
  ]);
  expect(chosen(decode, { front: { projection: front.attention } })).toBe("fused");
  expect(chosen(decode, { front, off: new Set(["split 2+merge"]) })).toBe("fused");
});

test("the first of several rows in front that fits is chosen", () => {
  const front: Choices["front"] = {
    attention: [
      { when: null, variant: "gone" },
      { when: null, variant: "split+merge" },
      { when: null, variant: "plain" },
    ],
  };
  expect([chosen(decode, { front }), chosen(prefill, { front })]).toEqual(["split+merge", "plain"]);
});
