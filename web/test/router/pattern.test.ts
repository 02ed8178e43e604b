// Patterns match the same texts as in native engines, in linear time, and patterns that would be too large are errors.

import fc from "fast-check";
import { expect, test } from "vitest";

import { compilePattern } from "../../src/shared/decision/pattern.js";
import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import { oneOf, runs } from "../exhaustive.js";

/** A pattern, and the equivalent JavaScript regular expression for texts with boundaries. */
interface Expression {
  readonly pattern: string;
  readonly across: string;
}

const CHARACTERS = ["a", "b", "1", "-", " ", "[ab]", "[^a1]", "\\w", "\\W", "\\d", "\\n"];
const character = fc
  .constantFrom(...CHARACTERS)
  .map((pattern): Expression => ({ pattern, across: `(?:(?!\\v)${pattern}\\v?)` }));
const assertion = fc
  .constantFrom("^", "$", "\\b", "\\B")
  .map((pattern): Expression => ({ pattern, across: `(?=${pattern}|(?<=\\v)|\\v)` }));
const joined = (parts: readonly Expression[], separator: string): Expression => ({
  pattern: `(?:${parts.map(({ pattern }) => pattern).join(separator)})`,
  across: `(?:${parts.map(({ across }) => across).join(separator)})`,
});
const { expression } = fc.letrec<{ expression: Expression }>((tie) => ({
  expression: fc.oneof(
    { maxDepth: 3 },
    { weight: 4, arbitrary: character },
    { weight: 1, arbitrary: assertion },
    {
      weight: 3,
      arbitrary: fc.array(tie("expression"), { minLength: 1, maxLength: 4 }).map((parts) => joined(parts, "")),
    },
    {
      weight: 2,
      arbitrary: fc.array(tie("expression"), { minLength: 2, maxLength: 3 }).map((parts) => joined(parts, "|")),
    },
    {
      weight: 2,
      arbitrary: fc
        .tuple(tie("expression"), fc.constantFrom("*", "+", "?", "{2}", "{0}", "{1,}", "{0,2}", "*?", "{1,3}?"))
        .map(([{ pattern, across }, quantifier]) => ({
          pattern: `(?:${pattern})${quantifier}`,
          across: `(?:${across})${quantifier}`,
        })),
    },
  ),
}));

test("a pattern finds what the native engine finds, with boundaries and without", () => {
  const text = fc.string({ unit: fc.constantFrom("a", "b", "1", "-", " ", "\n", "\v"), maxLength: 10 });
  fc.assert(
    fc.property(expression, text, ({ pattern, across }, given) => {
      const compiled = compilePattern(pattern, false);
      expect(compiled.test(given)).toBe(new RegExp(pattern, "u").test(given));
      expect(compiled.test(given, true)).toBe(new RegExp(across, "u").test(given));
    }),
    { numRuns: runs(300, 2000) },
  );
});

const LONG = 30_000;
/** No two parts of the text are alike, so a search always reaches new sets of states. */
const RANDOM = Array.from({ length: LONG }, (_, index) =>
  Math.imul(index ^ (index >>> 3), 0x9e3779b1) < 0 ? "a" : "b",
).join("");

test.each<readonly [pattern: string, text: string]>([
  ["(a+)+$", `${"a".repeat(LONG)}b`],
  ["(?:(?:(?:a+)+)+)+c", RANDOM],
  // Each has as many states as a pattern may have.
  ...oneOf<readonly [string, string]>(
    2,
    [
      ["(?:a?b?){240}c", RANDOM],
      ["(?:a|b)*a(?:a|b){320}c", RANDOM],
    ],
    1,
  ),
  ["[\\w.+-]+@([\\w-]+\\.)+[a-z]{2,}", "a".repeat(LONG)],
])("%s searches 30,000 characters within half a second or so", { timeout: 60_000 }, (pattern, text) => {
  const check = PrivateCheck.of({ labels: [], patterns: [pattern], ignore_case: true });
  const start = process.cpuUsage();
  check.matches(text);
  const { user } = process.cpuUsage(start);
  // In processor time; a backtracking engine takes minutes or years.
  expect(user).toBeLessThan(3_000_000);
});

test("nested loops are searched completely", () => {
  const check = PrivateCheck.of({ labels: [], patterns: ["(a+)+$"], ignore_case: false });
  expect([check.matches(`${"a".repeat(LONG)}b`), check.matches("a".repeat(LONG))]).toEqual([false, true]);
});

test("a text is private if its search needs too many visits", () => {
  const texts = Array.from({ length: 10 }, () => RANDOM);
  expect(PrivateCheck.of({ labels: [], patterns: ["a.{0,490}c"], ignore_case: false }).matches(...texts)).toBe(true);
});

test("the error of a pattern with too many states names the limit", () => {
  expect(compilePattern("a{1000}", false).test("a".repeat(1000))).toBe(true);
  expect(() => compilePattern("a{1000}b", false)).toThrow(
    'the pattern "a{1000}b" needs more than 1000 states; shorten it or reduce its counts',
  );
});
