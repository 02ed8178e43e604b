import fc from "fast-check";
import { expect, test } from "vitest";

import { StopStrings } from "../../src/api/choice.js";

function run(
  stops: readonly string[],
  parts: readonly string[],
): { readonly pieces: readonly string[]; readonly stopped: boolean } {
  const strings = new StopStrings(stops);
  const pieces = parts.map((part) => strings.feed(part));
  return { pieces: [...pieces, strings.finish()], stopped: strings.stopped };
}

test("text that may start a stop string is held back until it cannot", () => {
  expect(run(["END"], ["a", "E", "N", "x"]).pieces).toEqual(["a", "", "", "ENx", ""]);
});

test("a stop string in several pieces is never returned, nor is the text after it", () => {
  expect(run(["END"], ["aE", "N", "Db", "c"])).toEqual({ pieces: ["a", "", "", "", ""], stopped: true });
});

test("text that is still held back at the end is returned", () => {
  expect(run(["END"], ["aEN"])).toEqual({ pieces: ["a", "EN"], stopped: false });
});

test("a false start within a stop string does not hide it", () => {
  expect(run(["aab"], ["a", "a", "a", "b"]).pieces.join("")).toBe("a");
});

test("the division into pieces does not change the result, for any stop strings", () => {
  const text = fc.string({ unit: fc.constantFrom("a", "b", "c"), maxLength: 30 });
  const stops = fc.array(fc.string({ unit: fc.constantFrom("a", "b", "c"), minLength: 1, maxLength: 4 }), {
    maxLength: 4,
  });
  fc.assert(
    fc.property(text, stops, fc.array(fc.nat(5)), (text, stops, cuts) => {
      const parts: string[] = [];
      let rest = text;
      for (const cut of cuts) {
        parts.push(rest.slice(0, cut));
        rest = rest.slice(cut);
      }
      const { pieces, stopped } = run(stops, [...parts, rest]);
      const out = pieces.join("");
      const first = Array.from({ length: text.length + 1 }, (_, end) =>
        stops.filter((stop) => text.slice(0, end).endsWith(stop)).map((stop) => end - stop.length),
      ).find((starts) => starts.length > 0);
      expect(stopped).toBe(first !== undefined);
      expect(out).toBe(first === undefined ? text : text.slice(0, Math.min(...first)));
    }),
  );
});
