// Loads the weights: reads and checks the shards one by one, and fills a GPU buffer for each plane of each weight. A
// shard's bytes are released when they are on the device, so the host holds a few shards at a time and never the entire
// model.

import type { Allocator } from "./allocator.js";
import type { Manifest, PlaneEntry } from "./manifest.js";
import type { Bytes } from "./read_file.js";
import { inParallel, readFile } from "./read_file.js";
import type { OnBytes, Source } from "./source.js";

// The number of shards in memory at a time.
const SHARDS = 4;

/** The name of a weight's plane among all planes. */
export function planeKey(weight: string, plane: string): string {
  return `${weight}:${plane}`;
}

/** A buffer for each plane, by `planeKey`. */
export function allocateWeights(allocator: Allocator, manifest: Manifest): ReadonlyMap<string, GPUBuffer> {
  const planes = planesByShard(manifest).flat();
  return new Map(planes.map(([key, plane]) => [key, allocator.storage(key, plane.size)]));
}

/** Fill the buffers. Returns the shards of the host weights, by number. */
export async function loadWeights(
  device: GPUDevice,
  buffers: ReadonlyMap<string, GPUBuffer>,
  manifest: Manifest,
  source: Source,
  signal: AbortSignal,
  onBytes?: OnBytes,
): Promise<ReadonlyMap<number, Blob>> {
  const planes = planesByShard(manifest);
  const onHost = new Set(
    Object.values(manifest.host_weights).flatMap((weight) => weight.planes.map(({ shard }) => shard)),
  );
  const tables = new Map<number, Blob>();
  await inParallel(manifest.shards, SHARDS, async (shard, index) => {
    const bytes = await readFile(source, shard, signal, onBytes);
    signal.throwIfAborted();
    if (onHost.has(index)) tables.set(index, (await source.stored?.(shard)) ?? new Blob([bytes]));
    for (const [key, plane] of planes[index] ?? []) {
      const buffer = buffers.get(key);
      if (buffer !== undefined) upload(device, buffer, bytes, plane);
    }
  });
  return tables;
}

/** The bytes of the largest plane. */
export function largestPlane(manifest: Manifest): number {
  return Object.values(manifest.weights).reduce(
    (largest, { planes }) => Math.max(largest, ...planes.map(({ size }) => size)),
    0,
  );
}

function planesByShard(manifest: Manifest): readonly (readonly [string, PlaneEntry])[][] {
  const planes: [string, PlaneEntry][][] = manifest.shards.map(() => []);
  for (const [weight, { planes: own }] of Object.entries(manifest.weights)) {
    for (const plane of own) {
      planes[plane.shard]?.push([planeKey(weight, plane.name), plane]);
    }
  }
  return planes;
}

function upload(device: GPUDevice, buffer: GPUBuffer, bytes: Bytes, plane: PlaneEntry): void {
  // Writes consist of 32-bit words. If the number of float16 values is odd, the last one is written separately and
  // padded with zeros.
  const aligned = plane.size - (plane.size % 4);
  device.queue.writeBuffer(buffer, 0, bytes, plane.offset, aligned);
  if (aligned < plane.size) {
    const rest = new Uint8Array(4);
    rest.set(bytes.subarray(plane.offset + aligned, plane.offset + plane.size));
    device.queue.writeBuffer(buffer, aligned, rest);
  }
}
