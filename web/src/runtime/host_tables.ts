// The tables that stay on the host: for each batch, their rows of the new tokens are read, unpacked and sent to the
// device. A table is never completely in memory: its shards are Blobs, whose bytes are in the store's files, or in the
// browser's storage for large Blobs.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { GatheredEntry, InputEntry, Manifest, PlanEntry, PlaneEntry, WeightEntry } from "./manifest.js";

/** Integers of a checkpoint have a scale for each row (c) or for a number of columns (g), others for 32 columns. */
const CODES = /^q([248])(?:(c)|g(\d+)|f(?:16|32))$/;
const GROUP = 32;

interface Row {
  readonly weight: WeightEntry;
  readonly index: number;
}

/** Sends the gathered inputs of one batch to the device. */
export type Send = (queue: GPUQueue, buffers: ReadonlyMap<string, GPUBuffer>) => void;

/** The inputs of a plan that a batch brings, which are those that are not gathered. */
export function batchInputs({ inputs, gathered }: PlanEntry): Readonly<Record<string, InputEntry>> {
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

/** A row of a weight times ``scale``, rounded to float32 after each product; compiler/quant/ defines the formats. */
function unpack(quantization: string, [first, scales]: readonly Plane[], scale: number, row: Float32Array): void {
  const factor = Math.fround(scale);
  const codes = CODES.exec(quantization);
  if (first === undefined) return;
  if (codes === null || scales === undefined) {
    for (let column = 0; column < row.length; column++) row[column] = floatAt(first, column) * factor;
    return;
  }
  const bits = Number(codes[1]);
  const [mask, zero] = [2 ** bits - 1, 2 ** (bits - 1)];
  const bytes = new Uint8Array(first.bytes.buffer);
  const group = Math.min(groupOf(codes), row.length);
  for (let start = 0, index = 0; start < row.length; start += group, index++) {
    const own = floatAt(scales, index);
    const end = Math.min(start + group, row.length);
    for (let column = start; column < end; column++) {
      // Byte b of a word has element b in its lowest bits, element b + 4 in the next ones, and so on.
      const element = column & (32 / bits - 1);
      const byte = bytes[(((column - element) * bits) >> 3) + (element & 3)] ?? 0;
      row[column] = Math.fround((((byte >> ((element >> 2) * bits)) & mask) - zero) * own) * factor;
    }
  }
}

function floatAt({ dtype, bytes }: Plane, index: number): number {
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

function groupOf([, , row, columns]: RegExpExecArray): number {
  return row === undefined ? Number(columns ?? GROUP) : Infinity;
}

/** Whether the planes of a host weight have the widths of its format. */
export function isTable({ shape, quantization, planes }: WeightEntry): boolean {
  const [rows = 0, columns = 0] = shape;
  const padded = Math.ceil(columns / GROUP) * GROUP;
  const codes = CODES.exec(quantization ?? "");
  const widths = codes
    ? [(padded * Number(codes[1])) / 32, Math.max(1, Math.ceil(columns / groupOf(codes)))]
    : quantization === "f16" || quantization === "f32"
      ? [padded]
      : [];
  const dtypes = codes ? ["uint32", "float16 float32"] : [quantization === "f16" ? "float16" : "float32"];
  return (
    shape.length === 2 &&
    widths.length > 0 &&
    planes.length === widths.length &&
    planes.every(
      (plane, index) => plane.shape.join() === `${rows},${widths[index]}` && dtypes[index]?.includes(plane.dtype),
    )
  );
}
