// Preparing pictures, against what transformers' processors make of them (tests/image_oracle.py).

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import { prepareImage } from "../../src/images/patches.js";
import type { Pixels } from "../../src/images/resize.js";
import type { ImageSpec } from "../../src/runtime/manifest.js";
import { imageLayout } from "../../src/shared/images/layout.js";
import { oneOf } from "../exhaustive.js";

interface Case {
  readonly width: number;
  readonly height: number;
  readonly features: readonly number[];
  readonly samples: readonly (readonly [number, number])[];
  readonly text: string;
  readonly patches: string;
  readonly rows: string;
  readonly weights: string;
  readonly positions: string;
  readonly key: string;
}

interface Family {
  readonly spec: ImageSpec;
  readonly cases: readonly Case[];
  readonly refused: readonly (readonly [number, number])[];
}

const FAMILIES = JSON.parse(readFileSync("../tests/conformance/images.json", "utf8")) as Record<string, Family>;

const hashOf = (data: string | Float32Array | Int32Array): string => createHash("sha256").update(data).digest("hex");

/** As tests/image_families.py makes it. */
function pattern(width: number, height: number): Pixels {
  const data = new Uint8Array(width * height * 3);
  for (let y = 0, at = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      data[at++] = x * 3 + y * 5 + ((x * y) >> 3);
      data[at++] = x ^ y;
      data[at++] = (x * x + y * y) >> 5;
    }
  return { width, height, data };
}

// Every third size of a family, beginning with another one in the next family.
const CASES = Object.entries(FAMILIES).flatMap(([name, { spec, cases }], family) =>
  oneOf(3, cases, family).map((each) => [`${name}, ${each.width} x ${each.height}`, spec, each] as const),
);

test.each(CASES)("pixels and text are those of the model's own processor: %s", async (_, spec, expected) => {
  const prepared = await prepareImage(spec, pattern(expected.width, expected.height));
  expect(expected.samples.map(([place]) => [place, prepared.patches[place]])).toEqual(expected.samples);
  expect(prepared.features).toEqual(expected.features);
  expect(hashOf(prepared.text)).toBe(expected.text);
  for (const part of ["patches", "rows", "weights", "positions"] as const)
    expect([part, hashOf(prepared[part])]).toEqual([part, expected[part]]);
  expect(prepared.key).toBe(expected.key);
});

test("pictures that the processor refuses are refused", () => {
  const refused = Object.values(FAMILIES).flatMap(({ spec, refused: sizes }) =>
    sizes.map((size) => [spec, size] as const),
  );
  expect(refused).not.toHaveLength(0);
  for (const [spec, [width, height]] of refused) expect(() => imageLayout(spec, width, height)).toThrow(RequestError);
});

test("a spec that contradicts itself is refused", async () => {
  const { spec } = FAMILIES.gemma3 ?? {};
  if (spec === undefined) throw new Error("images.json has no gemma3");
  const wrong = { ...spec, positions: { ...spec.positions, side: 63 } };
  await expect(prepareImage(wrong, pattern(5, 5))).rejects.toThrow(/images\.positions\.side is 63/);
});
