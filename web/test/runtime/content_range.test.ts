import { expect, test } from "vitest";

import { parseContentRange } from "../../src/runtime/content_range.js";

test.each([
  ["bytes 100-199/200", { start: 100, end: 199, size: 200 }],
  ["bytes 0-0/1", { start: 0, end: 0, size: 1 }],
  ["BYTES 5-9/*", { start: 5, end: 9, size: null }],
  [" bytes  7-8/4294967297 ", { start: 7, end: 8, size: 4294967297 }],
])("%j is a range of bytes", (header, range) => {
  expect(parseContentRange(header)).toEqual(range);
});

test.each([
  "",
  "bytes */200",
  "bytes 9-5/200",
  "bytes 5-200/200",
  "bytes=5-9/200",
  "items 5-9/200",
  "bytes 5-/200",
  "bytes 1-2,4-5/200",
  "bytes -5-9/200",
])("%j is none", (header) => {
  expect(parseContentRange(header)).toBeNull();
});
