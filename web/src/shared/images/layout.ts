// The layout of a picture: the sizes to which it is resized, its tiles in order, and its text in the prompt. The page
// and Python then compute the pixels of a layout, each in its own language.

import { RequestError } from "../../errors.js";
import type { AreaBounds, EvenTiles, ImageSpec, LargestArea, LongestEdge, TileGrid } from "../../runtime/manifest.js";
import { imageText } from "./text.js";

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** ``from``: 0 is the picture, n the result of the nth resize. */
export interface Resize extends Size {
  readonly from: number;
}

export interface Tile extends Resize {
  readonly left: number;
  readonly top: number;
}

/** ``rows`` and ``columns`` of tiles are 0 for a picture that is one tile. ``features``: the number of each tile. */
export interface ImageLayout {
  readonly resizes: readonly Resize[];
  readonly tiles: readonly Tile[];
  readonly rows: number;
  readonly columns: number;
  readonly features: readonly number[];
  readonly text: string;
}

/** Throws RequestError for a picture that the model's own processor refuses, too. */
export function imageLayout(spec: ImageSpec, width: number, height: number): ImageLayout {
  if (![width, height].every((side) => Number.isSafeInteger(side) && side > 0))
    throw new RequestError(`images: a picture of ${width} x ${height} pixels has none; send another one`);
  const tiled = tilesOf(spec, { width, height });
  const side = spec.patch * spec.block;
  const features = tiled.tiles.map((tile) => Math.floor(tile.height / side) * Math.floor(tile.width / side));
  return { ...tiled, features, text: imageText(spec, tiled, features) };
}

const TOO_UNEQUAL = "its sides are too unequal for the model";

type Tiled = Pick<ImageLayout, "resizes" | "tiles" | "rows" | "columns">;

function tilesOf(spec: ImageSpec, picture: Size): Tiled {
  const size = sizeOf(spec, picture);
  const { tiles } = spec;
  if (tiles === null) return oneTile(size);
  return tiles.rule === "even" ? evenTiles(tiles, size) : gridTiles(spec, tiles, picture, size);
}

function oneTile({ width, height }: Size): Tiled {
  return {
    resizes: [{ from: 0, width, height }],
    tiles: [{ from: 1, left: 0, top: 0, width, height }],
    rows: 0,
    columns: 0,
  };
}

/** The size of the first resize. */
function sizeOf(spec: ImageSpec, picture: Size): Size {
  const { size, patch, block } = spec;
  switch (size.rule) {
    case "fixed":
      return { width: size.width, height: size.height };
    case "longest_edge":
      return longestEdge(size, picture);
    case "area_bounds":
      return areaBounds(size, picture, patch * block);
    case "largest_area":
      return largestArea(size, picture, patch * block);
    default:
      return size satisfies never;
  }
}

export function longestEdge({ pixels, most }: Pick<LongestEdge, "pixels" | "most">, { width, height }: Size): Size {
  const even = (length: number): number => Math.max(length + (length % 2), 1);
  const ratio = width / height;
  const scaled =
    width >= height
      ? { width: pixels, height: even(Math.trunc(pixels / ratio)) }
      : { width: even(Math.trunc(pixels * ratio)), height: pixels };
  const larger = scaled.width / scaled.height;
  if (scaled.width >= scaled.height && scaled.width > most)
    return { width: most, height: Math.max(Math.trunc(most / larger), 1) };
  if (scaled.height > scaled.width && scaled.height > most)
    return { width: Math.max(Math.trunc(most * larger), 1), height: most };
  return scaled;
}

function areaBounds(bounds: AreaBounds, picture: Size, side: number): Size {
  const { width, height } = picture;
  const { least, most, whole_blocks: whole, max_aspect: aspect } = bounds;
  if (aspect !== null && Math.max(width, height) / Math.min(width, height) > aspect)
    throw refused(picture, `one side is more than ${aspect} times the other one`);
  const sized = (lengthOf: (length: number) => number): Size => ({ width: lengthOf(width), height: lengthOf(height) });
  let size = sized((length) => Math.max(halfToEven(length / side) * side, whole ? side : 0));
  const area = size.width * size.height;
  if (area > most) {
    const scale = Math.sqrt((height * width) / most);
    size = sized((length) => Math.max(side, Math.floor(length / scale / side) * side));
  } else if (area < least) {
    const scale = Math.sqrt(least / (height * width));
    size = sized((length) => Math.ceil((length * scale) / side) * side);
  }
  if (size.width * size.height > most) throw refused(picture, TOO_UNEQUAL);
  return size;
}

export function largestArea({ most }: Pick<LargestArea, "most">, picture: Size, side: number): Size {
  const { width, height } = picture;
  const scale = Math.sqrt(most / (height * width));
  const floored = (length: number): number => Math.floor((scale * length) / side) * side;
  const size = { width: floored(width), height: floored(height) };
  const longest = Math.floor(most / side ** 2) * side;
  if (size.height === 0) {
    size.height = side;
    size.width = Math.min(Math.floor(width / height) * side, longest);
  } else if (size.width === 0) {
    size.width = side;
    size.height = Math.min(Math.floor(height / width) * side, longest);
  }
  if (size.width * size.height === 0 || size.width * size.height > most) throw refused(picture, TOO_UNEQUAL);
  return size;
}

function evenTiles({ side }: EvenTiles, size: Size): Tiled {
  const multiple = (length: number): number => Math.ceil(length / side) * side;
  const ratio = size.width / size.height;
  const large =
    size.width >= size.height
      ? { width: multiple(size.width), height: multiple(Math.trunc(multiple(size.width) / ratio)) }
      : { width: multiple(Math.trunc(multiple(size.height) * ratio)), height: multiple(size.height) };
  const resizes = [
    { from: 0, ...size },
    { from: 1, ...large },
  ];
  const tiles = crops(2, side, large);
  if (tiles.length === 1) return { resizes, tiles, rows: 0, columns: 0 };
  return {
    resizes: [...resizes, { from: 2, width: side, height: side }],
    tiles: [...tiles, { from: 3, left: 0, top: 0, width: side, height: side }],
    rows: large.height / side,
    columns: large.width / side,
  };
}

function gridTiles({ patch, block }: ImageSpec, tiles: TileGrid, picture: Size, size: Size): Tiled {
  const multiple = (length: number): number => Math.max(patch, halfToEven(length / (patch * block)) * patch * block);
  if (multiple(picture.width) * multiple(picture.height) <= tiles.above) return oneTile(size);
  const { side } = tiles;
  const [columns, rows] = closestGrid(tiles, picture);
  const large = { width: columns * side, height: rows * side };
  const cut = crops(1, side, large);
  if (!tiles.overview) return { resizes: [{ from: 0, ...large }], tiles: cut, rows, columns };
  return {
    resizes: [
      { from: 0, ...large },
      { from: 0, ...size },
    ],
    tiles: [...cut, { from: 2, left: 0, top: 0, ...size }],
    rows,
    columns,
  };
}

/** The tiles of a picture, row by row. */
function crops(from: number, side: number, { width, height }: Size): Tile[] {
  const columns = width / side;
  return Array.from({ length: columns * (height / side) }, (_, index) => ({
    from,
    left: (index % columns) * side,
    top: Math.floor(index / columns) * side,
    width: side,
    height: side,
  }));
}

/**
 * The columns and rows of the grid with the closest aspect ratio. If two are equally close, the larger one is chosen for
 * pictures that have more than half of its pixels.
 */
function closestGrid({ side, least, most }: TileGrid, { width, height }: Size): readonly [number, number] {
  let [best, difference]: [readonly [number, number], number] = [[1, 1], Infinity];
  for (let area = least; area <= most; area++)
    for (let columns = 1; columns <= area; columns++) {
      if (area % columns !== 0) continue;
      const rows = area / columns;
      const found = Math.abs(width / height - columns / rows);
      if (found < difference || (found === difference && width * height > 0.5 * side * side * columns * rows))
        best = [columns, rows];
      difference = Math.min(difference, found);
    }
  return best;
}

/** The nearest integer; of two, the even one, as Python rounds. */
export function halfToEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest === 0.5) return below + (below % 2);
  return rest < 0.5 ? below : below + 1;
}

const refused = ({ width, height }: Size, why: string): RequestError =>
  new RequestError(`images: a picture of ${width} x ${height} pixels cannot be read: ${why}; crop it`, {
    width,
    height,
  });
