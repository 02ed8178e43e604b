// Private texts stay private, however they are split into parts and whatever invisible characters they contain.

import { readFileSync } from "node:fs";

import fc from "fast-check";
import { expect, test } from "vitest";

import { PrivateCheck } from "../../src/shared/decision/privacy.js";

interface Case {
  readonly name: string;
  readonly pattern: string;
  readonly ignore_case?: boolean;
  readonly parts: readonly string[];
  readonly private: boolean;
}

const { cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/router_private.json", import.meta.url), "utf8"),
) as { readonly cases: readonly Case[] };
const check = (patterns: string[], ignoreCase = true): PrivateCheck =>
  PrivateCheck.of({ labels: [], patterns, ignore_case: ignoreCase });

test.each(cases)("conformance: $name", ({ pattern, ignore_case: ignoreCase, parts, private: isPrivate }) => {
  expect(check([pattern], ignoreCase).matches(...parts)).toBe(isPrivate);
});

const CHECK = check([
  "\\b[0-9]{3}-[0-9]{2}-[0-9]{4}\\b",
  "^private:",
  "\\bcode [A-Z]+\\b",
  "x\\By",
  "\u00e9t\u00e9",
  "end$",
  "k(?:ey)?\\s*=\\s*[^ ]{2,4}",
]);
const FOUND = [
  "my 123-45-6789.",
  "private: it",
  "the CODE abc",
  "xy",
  "\u00c9t\u00e9",
  "the end",
  "KEY = abc",
  "\\u0031\\u00323-45-6789",
  "e\u0301te\u0301",
];
/** All such characters of all planes. */
const IGNORABLE = Array.from({ length: 0x110000 }, (_, point) => String.fromCodePoint(point)).filter((character) =>
  /[\p{DI}\p{Cf}\u2800]|(?![\t-\r\x85])\p{Cc}/u.test(character),
);

test("neither splits nor ignorable characters make a private text public", () => {
  const others = fc.array(fc.string({ unit: fc.constantFrom(...Array.from("a1 -.\u00e9\n")), maxLength: 4 }), {
    maxLength: 3,
  });
  // After each character: whether a part ends there, and which invisible characters follow.
  const places = fc.array(
    fc.record({
      cut: fc.boolean(),
      ignorable: fc.oneof({ weight: 2, arbitrary: fc.constant("") }, fc.constantFrom(...IGNORABLE)),
    }),
    { minLength: 30, maxLength: 30 },
  );
  fc.assert(
    fc.property(fc.constantFrom(...FOUND), others, places, others, (text, before, between, after) => {
      const parts: string[] = [];
      let part = "";
      for (const [index, character] of Array.from(text).entries()) {
        const { cut, ignorable } = between[index] ?? { cut: false, ignorable: "" };
        part += character + ignorable;
        if (!cut) continue;
        parts.push(part);
        part = "";
      }
      parts.push(part);
      expect([
        CHECK.matches(text),
        CHECK.matches(parts.join("")),
        CHECK.matches(...before, ...parts, ...after),
      ]).toEqual([true, true, true]);
    }),
    { numRuns: 300 },
  );
});
