import fc from "fast-check";
import { expect, test } from "vitest";

import { fromJson, toJson } from "../src/values.js";

const through = (value: unknown): unknown => fromJson(JSON.parse(JSON.stringify(toJson(value))));

test("plain data, numbers that are not finite, bigints, undefined and bytes survive the round trip", () => {
  const leaf = fc.oneof(
    fc.string(),
    fc.double().filter((value) => !Object.is(value, -0)),
    fc.boolean(),
    fc.bigInt(),
    fc.constantFrom(null, undefined),
    fc.uint8Array(),
    fc.float32Array(),
    fc.float64Array(),
    fc.int32Array(),
    fc.uint8Array().map((bytes) => bytes.slice().buffer),
  );
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { maxDepth: 3 },
      leaf,
      fc.array(tie("value")),
      fc.dictionary(fc.string(), tie("value"), { noNullPrototype: true }),
    ),
  }));
  fc.assert(
    fc.property(value, (original) => {
      // toEqual treats a key whose value is undefined as missing, and so does the wire.
      expect(through(original)).toEqual(original);
    }),
  );
});

test("a view of a buffer is sent as that part only, and long buffers are sent completely", () => {
  const bytes = Uint8Array.from({ length: 20_000 }, (_, index) => index % 251);
  expect(through(bytes.subarray(3, 19_999))).toEqual(bytes.slice(3, 19_999));
});

test.each([
  [{ a: [1, () => 1] }, "value.a[1]: a function"],
  [[new Map()], "value[0]: a Map"],
  [{ at: new Date() }, "value.at: a Date"],
  [new DataView(new ArrayBuffer(1)), "value: a DataView"],
  [{ deep: { nearfarValue: 1 } }, "value.deep has the key 'nearfarValue'"],
])("%j is refused with its location", (value, message) => {
  expect(() => toJson(value)).toThrow(message);
});

test("a kind of value that a later version sends is refused, not misread", () => {
  expect(() => fromJson({ nearfarValue: "Tensor" })).toThrow("'Tensor' is not a known nearfarValue");
});
