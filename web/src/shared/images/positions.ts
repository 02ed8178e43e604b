// Which rows of a table of positions the patches along one side of a tile mix. A patch mixes the products of those of
// its row and its column, or with the rule "axes" their sum.

import type { PositionSpec } from "../../runtime/manifest.js";

/** For each patch along a side, ``rows`` of the table's side and their ``weights``, both filled up with 0. */
export interface AxisTaps {
  readonly rows: readonly (readonly number[])[];
  readonly weights: readonly (readonly number[])[];
}

/** ``count``: the patches along a side of the tile. */
export function axisTaps({ rule, side }: PositionSpec, count: number): AxisTaps {
  const taps = Array.from({ length: count }, (_, patch) => {
    switch (rule) {
      case "plain":
      case "axes":
        return [[patch, 1] as const];
      case "fractions":
        return [[Math.floor((patch * side) / count), 1] as const];
      case "antialiased":
        return antialiased(patch, count, side);
      case "corners":
        return corners(patch, count, side);
      default:
        return rule satisfies never;
    }
  });
  const most = Math.max(...taps.map((each) => each.length));
  const column = (each: readonly Tap[], index: 0 | 1): number[] =>
    Array.from({ length: most }, (_, tap) => each[tap]?.[index] ?? 0);
  return { rows: taps.map((each) => column(each, 0)), weights: taps.map((each) => column(each, 1)) };
}

/** A row and its weight. */
type Tap = readonly [number, number];

// Models compute these in float32.
const { fround } = Math;

function antialiased(patch: number, count: number, side: number): Tap[] {
  const scale = fround(side / count);
  const support = Math.max(scale, 1);
  const center = fround(fround((patch + 0.5) * scale) - 0.5);
  const weights = Array.from({ length: side }, (_, row) =>
    Math.max(fround(1 - fround(Math.abs(fround(row - center)) / support)), 0),
  );
  const total = weights.reduce((sum, weight) => fround(sum + weight), 0);
  return weights.flatMap((weight, row): Tap[] => (weight > 0 ? [[row, fround(weight / total)]] : []));
}

function corners(patch: number, count: number, side: number): Tap[] {
  const at = fround(fround(patch * (side - 1)) / Math.max(count - 1, 1));
  const below = Math.floor(at);
  const rest = fround(at - below);
  return [
    [below, fround(1 - rest)],
    [Math.min(below + 1, side - 1), fround(1 - fround(Math.abs(fround(rest - 1))))],
  ];
}
