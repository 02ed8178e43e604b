// The test of a tower: features of known patches on this device, compared with the reference's.
// `compiler/runtime/feature_test.py` makes the same patches.

import type { PatchBatch } from "../runtime/batch.js";
import { featureSize } from "../runtime/batch.js";
import type { ImageSpec, ModelSpec, FeatureTestEntry } from "../runtime/manifest.js";

// The most patches of the test: several tiles of keys.
const PATCHES = 160;

/**
 * ``tilePatches``: those of the largest tile, ``tileSide`` those of the longest side if the tower rotates. All blocks but
 * one are a tile, and the last one is another. If the tower joins frames, every other patch has changes.
 */
export function testPatches(
  { patch, block, positions, video }: ImageSpec,
  tilePatches: number,
  tileSide = 0,
): PatchBatch {
  const size = block ** 2;
  const blocks = Math.max(1, Math.floor(Math.min(PATCHES, tilePatches) / size));
  const count = blocks * size;
  const { taps, rule, side } = positions;
  const table = rule === "axes" ? 2 * side : side ** 2;
  const filled = (columns: number, value: (patch: number, column: number) => number) =>
    Array.from({ length: count * columns }, (_, index) => value(Math.floor(index / columns), index % columns));
  const number = (row: number, element: number): number =>
    ((31 * row + 17 * element + Math.floor((row * element) / 3)) % 41) / 20 - 1;
  const changed = Array.from({ length: (video?.frames ?? 1) > 1 ? Math.ceil(count / 2) : 0 }, (_, index) => index * 2);
  return {
    patches: Float32Array.from(filled(3 * patch ** 2, number)),
    patch_rows: Int32Array.from(filled(taps, (row, tap) => (7 * row + 3 * tap) % table)),
    patch_weights: Float32Array.from(filled(taps, (_, tap) => 0.5 ** Math.min(tap + 1, 8))),
    patch_positions: Int32Array.from(
      filled(2, (row, axis) => (axis === 0 ? 5 * row : 3 * row + 1) % Math.max(1, tileSide)),
    ),
    change_rows: Int32Array.from(changed),
    changes: Float32Array.from(
      changed.flatMap((row) =>
        Array.from({ length: 3 * patch ** 2 }, (_, element) => number(count - 1 - row, element)),
      ),
    ),
    patch_starts: blocks === 1 ? [0, count] : [0, count - size, count],
  };
}

/**
 * The largest length of the difference from the expected values of a feature, relative to the longest one; infinite if a
 * feature is no number.
 */
export function visionDeviation(
  { rows }: Pick<FeatureTestEntry, "rows">,
  features: Float32Array,
  model: Pick<ModelSpec, "hidden_size" | "vision">,
): number {
  const columns = featureSize(model);
  if (!features.every(Number.isFinite)) return Infinity;
  const longest = Math.max(...rows.map(({ values }) => Math.hypot(...values)));
  const lengths = rows.map(({ row, elements, values }) =>
    Math.hypot(
      ...elements.map((element, index) => (features[row * columns + element] ?? NaN) - (values[index] ?? NaN)),
    ),
  );
  const largest = Math.max(...lengths) / longest;
  return Number.isNaN(largest) ? Infinity : largest;
}
