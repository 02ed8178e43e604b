// From the pixels of a picture to what a tower reads: patches, and the rows of its table of positions.
// `compiler/runtime/images/patches.py` computes the same.

import { BundleError, RequestError } from "../errors.js";
import type { PatchBatch } from "../runtime/batch.js";
import type { ImageSpec, PositionSpec } from "../runtime/manifest.js";
import { wrongImages } from "../shared/images/check.js";
import { imageKeyHead } from "../shared/images/key.js";
import type { Tile } from "../shared/images/layout.js";
import { imageLayout } from "../shared/images/layout.js";
import type { AxisTaps } from "../shared/images/positions.js";
import { axisTaps } from "../shared/images/positions.js";
import type { Pixels } from "./resize.js";
import { resizeU8 } from "./resize.js";

/**
 * A picture for the plan "vision": ``patches`` (V, 3 patch^2), block by block; ``rows`` and ``weights`` (V, taps) of the
 * table of positions; ``positions`` (V, 2), row and column; ``starts`` (I + 1), the first patch of each tile.
 *
 * ``features`` are the numbers of features of its tiles, ``text`` is what stands for it in the prompt, and ``key`` names
 * its pixels and how they were read.
 */
export interface PreparedImage {
  readonly patches: Float32Array;
  readonly rows: Int32Array;
  readonly weights: Float32Array;
  readonly positions: Int32Array;
  readonly starts: Int32Array;
  readonly features: readonly number[];
  readonly text: string;
  readonly key: string;
}

/** Throws BundleError for a spec that contradicts itself. */
export function requireImages(spec: ImageSpec, vocabSize = Infinity): void {
  const wrong = wrongImages(spec, vocabSize);
  if (wrong !== null) throw new BundleError(`manifest.json: images.${wrong.join(" ")}; compile the bundle again`);
}

/**
 * Throws RequestError for sides that the model's own processor refuses, too; BundleError for a spec that contradicts
 * itself.
 */
export async function prepareImage(spec: ImageSpec, picture: Pixels): Promise<PreparedImage> {
  requireImages(spec);
  return { ...imagePatches(spec, picture), key: await imageKey(spec, picture) };
}

/** The same without the key. */
export function imagePatches(spec: ImageSpec, picture: Pixels): Omit<PreparedImage, "key"> {
  const layout = imageLayout(spec, picture.width, picture.height);
  const sizes = [picture];
  for (const size of layout.resizes) sizes.push(resizeU8(sizes[size.from] ?? picture, size, spec.filter));
  const starts = [0];
  for (const features of layout.features) starts.push((starts.at(-1) ?? 0) + features * spec.block ** 2);
  const count = starts.at(-1) ?? 0;
  const { taps } = spec.positions;
  const prepared = {
    patches: new Float32Array(count * spec.patch ** 2 * 3),
    rows: new Int32Array(count * taps),
    weights: new Float32Array(count * taps),
    positions: new Int32Array(count * 2),
  };
  const tables = channelValues(spec);
  for (const [index, tile] of layout.tiles.entries()) {
    const [start, stop] = [Number(starts[index]), Number(starts[index + 1])];
    const part = <A extends Float32Array | Int32Array>(array: A): A => {
      const each = array.length / count;
      return array.subarray(start * each, stop * each) as A;
    };
    const source = sizes[tile.from] ?? picture;
    writePatches(spec, source, tile, tables, part(prepared.patches), part(prepared.positions));
    writeTableRows(spec, tile, part(prepared.positions), part(prepared.rows), part(prepared.weights));
  }
  const { features, text } = layout;
  return { ...prepared, starts: Int32Array.from(starts), features, text };
}

/**
 * A tile of a video for the plan "vision": one frame, or the mean of two, with half of what the first has more than the
 * second as changes of all patches.
 */
export function framePatches(spec: ImageSpec, frames: readonly Pixels[]): PatchBatch {
  const [first, second] = frames;
  if (first === undefined) throw new RequestError("videos: the video has no frames; send another one");
  const side = spec.patch * spec.block;
  const count = Math.floor(first.width / side) * Math.floor(first.height / side) * spec.block ** 2;
  const tables = channelValues(spec);
  const positions = new Int32Array(count * 2);
  const whole = { from: 0, left: 0, top: 0, width: first.width, height: first.height };
  const patchesOf = (frame: Pixels): Float32Array => {
    const patches = new Float32Array(count * spec.patch ** 2 * 3);
    writePatches(spec, frame, whole, tables, patches, positions);
    return patches;
  };
  const patches = patchesOf(first);
  const [rows, weights] = [new Int32Array(count * spec.positions.taps), new Float32Array(count * spec.positions.taps)];
  writeTableRows(spec, whole, positions, rows, weights);
  const batch = { patch_rows: rows, patch_weights: weights, patch_positions: positions, patch_starts: [0, count] };
  if (second === undefined) return { ...batch, patches };
  const { fround } = Math;
  const others = patchesOf(second);
  return {
    ...batch,
    patches: patches.map((value, index) => 0.5 * fround(value + Number(others[index]))),
    changes: patches.map((value, index) => 0.5 * fround(value - Number(others[index]))),
    change_rows: Int32Array.from({ length: count }, (_, index) => index),
  };
}

/** The SHA-256 of a picture's pixels and of how they are read, in hexadecimal. */
export async function imageKey(spec: ImageSpec, picture: Pixels): Promise<string> {
  return hashOf(imageKeyHead(spec, picture.width, picture.height), [picture]);
}

/** The same of a video's frames as they were resized. */
export async function framesKey(spec: ImageSpec, frames: readonly Pixels[]): Promise<string> {
  const { width = 0, height = 0 } = frames[0] ?? {};
  return hashOf(imageKeyHead(spec, width, height, frames.length), frames);
}

async function hashOf(text: string, frames: readonly Pixels[]): Promise<string> {
  const head = new TextEncoder().encode(text);
  const bytes = new Uint8Array(frames.reduce((sum, { data }) => sum + data.length, head.length));
  bytes.set(head);
  let at = head.length;
  for (const { data } of frames) bytes.set(data, (at += data.length) - data.length);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The patches of a tile and their positions. Pixels beyond the last block are not read. */
function writePatches(
  { patch, block, order }: ImageSpec,
  { width, data }: Pixels,
  tile: Tile,
  tables: readonly Float32Array[],
  patches: Float32Array,
  positions: Int32Array,
): void {
  const across = Math.floor(tile.width / (patch * block));
  const [red, green, blue] = tables as [Float32Array, Float32Array, Float32Array];
  const planar = order === "channel_row_column";
  // How far apart an element is from the next one of its row, and from that of the next channel.
  const [step, channel] = planar ? [1, patch * patch] : [3, 1];
  let to = 0;
  for (let index = 0; index * 2 < positions.length; index++) {
    const [within, whole] = [index % block ** 2, Math.floor(index / block ** 2)];
    const row = Math.floor(whole / across) * block + Math.floor(within / block);
    const column = (whole % across) * block + (within % block);
    positions[index * 2] = row;
    positions[index * 2 + 1] = column;
    for (let y = 0; y < patch; y++) {
      let from = ((tile.top + row * patch + y) * width + tile.left + column * patch) * 3;
      let at = to + y * patch * step;
      for (let x = 0; x < patch; x++, from += 3, at += step) {
        patches[at] = Number(red[Number(data[from])]);
        patches[at + channel] = Number(green[Number(data[from + 1])]);
        patches[at + 2 * channel] = Number(blue[Number(data[from + 2])]);
      }
    }
    to += patch * patch * 3;
  }
}

/** For each channel, what a tower reads for each byte. */
export function channelValues({ mean, std }: Pick<ImageSpec, "mean" | "std">): readonly Float32Array[] {
  const { fround } = Math;
  return [0, 1, 2].map((channel) => {
    if (mean === null || std === null) return Float32Array.from({ length: 256 }, (_, byte) => byte * fround(1 / 255));
    const [middle, width] = [mean, std].map((each) => fround(fround(each[channel] ?? 0) * 255)) as [number, number];
    return Float32Array.from({ length: 256 }, (_, byte) => fround(byte - middle) / width);
  });
}

/** The rows (V, taps) of the table that the patches of a tile mix, and their weights. Both arrays hold zeros. */
function writeTableRows(
  { positions: spec, patch, block }: ImageSpec,
  tile: Tile,
  positions: Int32Array,
  rows: Int32Array,
  weights: Float32Array,
): void {
  const side = patch * block;
  const sides = [tile.height, tile.width].map((length) => axisTaps(spec, Math.floor(length / side) * block));
  const [down, across] = sides as [AxisTaps, AxisTaps];
  for (let index = 0; index * 2 < positions.length; index++) {
    const [row, column] = [Number(positions[index * 2]), Number(positions[index * 2 + 1])];
    const taps = spec.rule === "axes" ? summed(spec, row, column) : mixed(spec, down, across, row, column);
    if (taps.length > spec.taps)
      throw new RequestError("images: the sides of a picture are too unequal for the model; crop it");
    for (const [tap, [tableRow, weight]] of taps.entries()) {
      rows[index * spec.taps + tap] = tableRow;
      weights[index * spec.taps + tap] = weight;
    }
  }
}

type Tap = readonly [row: number, weight: number];

const summed = ({ side }: PositionSpec, row: number, column: number): Tap[] => [
  [column, 1],
  [side + row, 1],
];

/** Those that have a weight. */
function mixed({ side }: PositionSpec, down: AxisTaps, across: AxisTaps, row: number, column: number): Tap[] {
  const taps: Tap[] = [];
  for (const [y, tableRow] of (down.rows[row] ?? []).entries())
    for (const [x, tableColumn] of (across.rows[column] ?? []).entries()) {
      const weight = Math.fround(Number(down.weights[row]?.[y]) * Number(across.weights[column]?.[x]));
      if (weight !== 0) taps.push([tableRow * side + tableColumn, weight]);
    }
  return taps;
}
