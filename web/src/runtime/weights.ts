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

/** A buffer for each plane, by `planeKey`; for a part of each of the weights in ``shares``, that share of it. */
export function allocateWeights(
  allocator: Allocator,
  manifest: Manifest,
  shares: ReadonlyMap<string, number>,
): ReadonlyMap<string, GPUBuffer> {
  const planes = planesByShard(manifest).flat();
  return new Map(
    planes.map(([key, { size }, weight]) => [
      key,
      allocator.storage(key, Math.round(size * (shares.get(weight) ?? 1))),
    ]),
  );
}

/**
 * Fill the buffers, except those of weights in ``shares``. Returns the shards of these and of the host weights, by
 * number. A shard of such weights alone is only read if it must be downloaded.
 */
export async function loadWeights(
  device: GPUDevice,
  buffers: ReadonlyMap<string, GPUBuffer>,
  manifest: Manifest,
  shares: ReadonlyMap<string, number>,
  source: Source,
  signal: AbortSignal,
  onBytes?: OnBytes,
): Promise<ReadonlyMap<number, Blob>> {
  const planes = planesByShard(manifest);
  const inFiles = new Set(
    [...Object.values(manifest.host_weights), ...[...shares.keys()].map((name) => manifest.weights[name])].flatMap(
      (weight) => weight?.planes.map(({ shard }) => shard) ?? [],
    ),
  );
  const files = new Map<number, Blob>();
  await inParallel(manifest.shards, SHARDS, async (shard, index) => {
    const uploaded = (planes[index] ?? []).filter(([, , weight]) => !shares.has(weight));
    if (shares.size > 0 && uploaded.length === 0) {
      // It was checked when it was stored.
      const stored = await source.stored?.(shard);
      if (stored) {
        files.set(index, stored);
        onBytes?.(shard.size, "store");
        return;
      }
    }
    const bytes = await readFile(source, shard, signal, onBytes);
    signal.throwIfAborted();
    if (inFiles.has(index)) files.set(index, (await source.stored?.(shard)) ?? new Blob([bytes]));
    for (const [key, plane] of uploaded) {
      const buffer = buffers.get(key);
      if (buffer !== undefined) upload(device, buffer, bytes, plane);
    }
  });
  return files;
}

/** The bytes of the largest plane. */
export function largestPlane(manifest: Manifest): number {
  return Object.values(manifest.weights).reduce(
    (largest, { planes }) => Math.max(largest, ...planes.map(({ size }) => size)),
    0,
  );
}

/** The key of each plane, the plane, and the name of its weight. */
function planesByShard(manifest: Manifest): readonly (readonly [string, PlaneEntry, string])[][] {
  const planes: [string, PlaneEntry, string][][] = manifest.shards.map(() => []);
  for (const [weight, { planes: own }] of Object.entries(manifest.weights)) {
    for (const plane of own) {
      planes[plane.shard]?.push([planeKey(weight, plane.name), plane, weight]);
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
