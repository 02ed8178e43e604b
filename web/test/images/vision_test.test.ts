// The patches with which runtimes test a tower (tests/vision_vectors.py).

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { testPatches } from "../../src/images/vision_test.js";
import type { ImageSpec } from "../../src/runtime/manifest.js";
import { wrongImages } from "../../src/shared/images/check.js";
import { SEEING } from "../seeing_letters.js";

interface Recorded {
  readonly tile_patches: number;
  readonly patches: string;
  readonly patch_rows: string;
  readonly patch_weights: string;
  readonly patch_starts: string;
  readonly patch_positions: string;
  readonly tile_side: number;
  readonly changes: string;
  readonly change_rows: string;
}

const read = (name: string): unknown => JSON.parse(readFileSync(`../tests/conformance/${name}.json`, "utf8"));
const SPECS = read("images") as Record<string, { readonly spec: ImageSpec }>;
const RECORDED = read("vision_test") as Record<string, Recorded>;

const hashOf = (data: Float32Array | Int32Array): string => createHash("sha256").update(data).digest("hex");

test.each(Object.entries(RECORDED))("the page makes the patches of %s as Python does", (name, recorded) => {
  const spec = SPECS[name]?.spec;
  if (spec === undefined) throw new Error(`images.json lacks ${name}`);
  const {
    patches,
    patch_rows: rows,
    patch_weights: weights,
    patch_starts: starts,
    patch_positions: positions = new Int32Array(),
    changes = new Float32Array(),
    change_rows: changed = new Int32Array(),
  } = testPatches(spec, recorded.tile_patches, recorded.tile_side);
  expect(hashOf(positions)).toBe(recorded.patch_positions);
  expect([hashOf(changes), hashOf(changed)]).toEqual([recorded.changes, recorded.change_rows]);
  expect([hashOf(Float32Array.from(patches)), hashOf(Int32Array.from(rows))]).toEqual([
    recorded.patches,
    recorded.patch_rows,
  ]);
  expect([hashOf(Float32Array.from(weights)), hashOf(Int32Array.from(starts))]).toEqual([
    recorded.patch_weights,
    recorded.patch_starts,
  ]);
});

test.each([
  [{ mean: [0.5, 2 ** 40, 0.5] }, ["mean", "is 0.5, 1099511627776, 0.5"]],
  [{ mean: [NaN, 0.5, 0.5] }, ["mean", "is NaN, 0.5, 0.5"]],
  [{ std: [0.5, 0.5, 2 ** -40] }, ["std", "is 0.5, 0.5, 9.094947017729282e-13"]],
  [{ std: [0.5, Infinity, 0.5] }, ["std", "is 0.5, Infinity, 0.5"]],
])("pictures that are scaled as by no model are refused: %j", (scales, wrong) => {
  const usual = { ...SEEING, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] };
  expect(wrongImages(usual, 9)).toBeNull();
  expect(wrongImages({ ...usual, ...scales }, 9)).toEqual(wrong);
});
