// The tables that stay on the host: for each batch, their rows of the new tokens are read, unpacked and sent to the
// device. A table is never completely in memory: its shards are Blobs, whose bytes are in the store's files, or in the
// browser's storage for large Blobs.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { GatheredEntry, InputEntry, Manifest, PlanEntry, PlaneEntry, WeightEntry } from "./manifest.js";

/** compiler/quant/ defines the formats: integers, and whether they have zero points (z), biases (b) or units (i8). */
const CODES = /^q(?:([48])f(?:16|32)|([234568])(?:c([zb]?)(?:_f16)?|g([1-9]\d*)(?:([zb]?)(?:_f16)?|(b?)_(i8))))$/;
const GROUP = 32;
const UNIT_COLUMNS = 256;

interface Row {
  readonly weight: WeightEntry;
  readonly index: number;
}

/** Sends the gathered inputs of one batch to the device. */
export type Send = (queue: GPUQueue, buffers: ReadonlyMap<string, GPUBuffer>) => void;

/** The inputs of a plan that a batch brings, which are those that are not gathered. */
export function batchInputs({
  inputs,
  gathered,
}: Pick<PlanEntry, "inputs" | "gathered">): Readonly<Record<string, InputEntry>> {
  return Object.fromEntries(Object.entries(inputs).filter(([name]) => !Object.hasOwn(gathered, name)));
}

/**
 * Read the rows of a batch's tokens. ``shards`` are those of the host weights, by number. Throws RequestError for a token
 * that only the device knows, and DeviceError if a shard cannot be read, for example because it was deleted.
 */
export async function gather(
  { host_weights: weights }: Pick<Manifest, "host_weights">,
  { gathered }: PlanEntry,
  shards: ReadonlyMap<number, Blob>,
  tokenIds: readonly number[],
): Promise<Send> {
  if (tokenIds.some((id) => id < 0))
    throw new RequestError(
      "batch: this model needs the ids of all tokens; read the sampled ones before the next batch",
    );
  const inputs = await Promise.all(
    Object.entries(gathered).map(
      async ([name, entry]) => [name, await rowsOf(entry, weights, shards, tokenIds)] as const,
    ),
  );
  return (queue, buffers) => {
    for (const [name, rows] of inputs) {
      const buffer = buffers.get(name);
      if (buffer !== undefined) queue.writeBuffer(buffer, 0, rows);
    }
  };
}

/** (S, columns); zeros for a token beyond the last row. */
async function rowsOf(
  { weights: names, scale }: GatheredEntry,
  weights: Manifest["host_weights"],
  shards: ReadonlyMap<number, Blob>,
  tokenIds: readonly number[],
): Promise<Float32Array<ArrayBuffer>> {
  const tables = names.flatMap((name) => weights[name] ?? []);
  const columns = tables[0]?.shape[1] ?? 0;
  const found = new Float32Array(tokenIds.length * columns);
  const read = async (id: number, index: number): Promise<void> => {
    const row = rowOf(tables, id);
    if (row === null) return;
    // Reads in parallel are faster than one read of a Blob of all parts.
    const planes = await Promise.all(
      row.weight.planes.map(async (plane): Promise<Plane> => ({
        dtype: plane.dtype,
        bytes: new DataView(await slice(plane, row, shards).arrayBuffer()),
      })),
    );
    unpack(row.weight.quantization ?? "", planes, scale, found.subarray(index * columns, (index + 1) * columns));
  };
  try {
    await Promise.all(tokenIds.map(read));
  } catch (error) {
    throw new DeviceError(
      `The model's table cannot be read (${messageOf(error)}); load the model again`,
      {},
      { cause: error },
    );
  }
  return found;
}

function rowOf(tables: readonly WeightEntry[], id: number): Row | null {
  let index = id;
  for (const weight of tables) {
    const rows = weight.shape[0] ?? 0;
    if (index < rows) return { weight, index };
    index -= rows;
  }
  return null;
}

function slice(plane: PlaneEntry, { index }: Row, shards: ReadonlyMap<number, Blob>): Blob {
  const start = plane.offset + index * rowBytes(plane);
  const part = shards.get(plane.shard)?.slice(start, start + rowBytes(plane));
  if (part === undefined) throw new Error(`shard ${plane.shard} is not loaded`);
  return part;
}

/** One row of a plane. */
interface Plane extends Pick<PlaneEntry, "dtype"> {
  readonly bytes: DataView;
}

interface Codes {
  readonly bits: number;
  /** Bits in plane ``q``; the others are in plane ``h``. */
  readonly low: number;
  /** The columns that share a scale. */
  readonly group: number;
  readonly offset: "" | "z" | "b";
  readonly hasUnits: boolean;
}

function codesOf(quantization: string): Codes | null {
  const match = CODES.exec(quantization);
  if (match === null) return null;
  const [, own, given, ofRow, group = own === undefined ? Infinity : GROUP, ofGroup, ofUnits, units] = match;
  const bits = Number(own ?? given);
  return {
    bits,
    low: bits === 8 ? 8 : bits > 3 ? 4 : 2,
    group: Number(group),
    offset: (ofRow ?? ofGroup ?? ofUnits ?? "") as Codes["offset"],
    hasUnits: units !== undefined,
  };
}

/** A row of a weight times ``scale``, rounded to float32 after each operation, as compiler/quant/ defines the formats. */
function unpack(quantization: string, planes: readonly Plane[], scale: number, row: Float32Array): void {
  const factor = Math.fround(scale);
  const codes = codesOf(quantization);
  const [first] = planes;
  if (first === undefined) return;
  if (codes === null) {
    for (let column = 0; column < row.length; column++) row[column] = numberAt(first, column) * factor;
    return;
  }
  const { bits, low, group, offset, hasUnits } = codes;
  const high = bits - low;
  const [scales, second] = planes.slice(high > 0 ? 2 : 1);
  const numbers = offset === "" ? 1 : 2;
  const numberOf = (index: number, place: number): number => {
    if (!hasUnits) return numberAt(place === 0 ? scales : second, index);
    const unit = Math.floor((index * group) / UNIT_COLUMNS) * numbers + place;
    return numberAt(scales, index * numbers + place) * numberAt(second, unit);
  };
  for (let start = 0, index = 0; start < row.length; start += group, index++) {
    const own = numberOf(index, 0);
    const added = offset === "" ? 2 ** (bits - 1) : numberOf(index, 1);
    for (let column = start; column < Math.min(start + group, row.length); column++) {
      const code = partAt(first, low, column) + (high > 0 ? partAt(planes[1], high, column) << low : 0);
      const value = offset === "b" ? Math.fround(code * own) + added : (code - added) * own;
      row[column] = Math.fround(value) * factor;
    }
  }
}

/** The ``bits`` bits of a column's code that a plane holds. */
function partAt(plane: Plane | undefined, bits: number, column: number): number {
  // Byte b of a word has element b in its lowest bits, element b + 4 in the next ones, and so on.
  const element = column & (32 / bits - 1);
  const byte = plane?.bytes.getUint8((((column - element) * bits) >> 3) + (element & 3)) ?? 0;
  return (byte >> ((element >> 2) * bits)) & (2 ** bits - 1);
}

function numberAt(plane: Plane | undefined, index: number): number {
  if (plane === undefined) return 0;
  const { dtype, bytes } = plane;
  if (dtype === "int8") return bytes.getInt8(index);
  if (dtype === "float32") return bytes.getFloat32(4 * index, true);
  // A finite float16.
  const half = bytes.getUint16(2 * index, true);
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  return half >> 15 ? -size : size;
}

function rowBytes({ size, shape }: PlaneEntry): number {
  return size / (shape[0] ?? 1);
}

/** Whether the planes of a host weight have the widths of its format. */
export function isTable({ shape, quantization, planes }: WeightEntry): boolean {
  const [rows = 0, columns = 0] = shape;
  const padded = Math.ceil(columns / GROUP) * GROUP;
  const codes = codesOf(quantization ?? "");
  const expected: [width: number, dtypes: string][] = [];
  if (codes !== null) {
    const { bits, low, group, offset, hasUnits } = codes;
    for (const part of bits > low ? [low, bits - low] : [low]) expected.push([(padded * part) / 32, "uint32"]);
    const numbers = offset === "" ? 1 : 2;
    const scales = Math.max(1, Math.ceil(columns / group));
    if (hasUnits) expected.push([numbers * scales, "int8"], [numbers * Math.ceil(columns / UNIT_COLUMNS), "float16"]);
    else for (let place = 0; place < numbers; place++) expected.push([scales, "float16 float32"]);
  } else if (quantization === "f16" || quantization === "f32") {
    expected.push([padded, quantization === "f16" ? "float16" : "float32"]);
  }
  return (
    shape.length === 2 &&
    expected.length > 0 &&
    planes.length === expected.length &&
    planes.every((plane, index) => {
      const [width, dtypes] = expected[index] ?? [0, ""];
      return plane.shape.join() === `${rows},${width}` && dtypes.includes(plane.dtype);
    })
  );
}
