// The weights of a probe: numbers that follow from their index, as compiler/bundle/probe.py defines them.

import type { FileEntry, PlaneEntry } from "../runtime/manifest.js";
import { readFile } from "../runtime/read_file.js";
import type { Bytes, Source } from "../runtime/source.js";
import type { ProbeFile } from "./schema.js";

/** The words repeat after this number, a prime, so that no two rows of a matrix are alike. */
const PERIOD = 262_139;
/** Each plane starts this many words behind the one before it. */
const STRIDE = 7919;

/** The words (PERIOD,): the finalizer of MurmurHash3 (Appleby 2011) of each index plus one. */
export function words(): Uint32Array {
  const all = new Uint32Array(PERIOD);
  for (let index = 0; index < PERIOD; index++) {
    let word = index + 1;
    word = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
    word = Math.imul(word ^ (word >>> 13), 0xc2b2ae35);
    all[index] = word ^ (word >>> 16);
  }
  return all;
}

const WIDTHS = { float32: 4, uint32: 4, float16: 2, int8: 1 } as const satisfies Record<PlaneEntry["dtype"], number>;

/** Write plane ``number`` of a probe into ``bytes``: its words, or the one of ``values`` that each word's highest bits choose. */
export function fillPlane(
  bytes: Bytes,
  dtype: PlaneEntry["dtype"],
  number: number,
  values: readonly number[] | null,
  all: Uint32Array,
): void {
  const start = (number * STRIDE) % PERIOD;
  const width = WIDTHS[dtype];
  const block = new { 4: Uint32Array, 2: Uint16Array, 1: Uint8Array }[width](
    Math.min(PERIOD, Math.ceil(bytes.length / width)),
  );
  for (let index = 0; index < block.length; index++) {
    const word = all[(start + index) % PERIOD] ?? 0;
    block[index] = values === null ? word : (values[word >>> 28] ?? 0);
  }
  const pattern = new Uint8Array(block.buffer);
  for (let at = 0; at < bytes.length; at += pattern.length)
    bytes.set(pattern.subarray(0, Math.min(pattern.length, bytes.length - at)), at);
}

/** The bundle of a probe: its shards are made, and its other files come from the bundle's folder, checked. */
export function probeSource(source: Source, probe: ProbeFile): Source {
  const planes = Object.entries(probe.weights).flatMap(([name, weight]) =>
    weight.planes.map((plane) => [plane, probe.values[`${name}:${plane.name}`] ?? null] as const),
  );
  const all = words();
  const made = (shard: FileEntry, index: number): Bytes => {
    const bytes = new Uint8Array(shard.size);
    planes.forEach(([{ dtype, offset, size, shard: place }, values], number) => {
      if (place === index) fillPlane(bytes.subarray(offset, offset + size), dtype, number, values, all);
    });
    return bytes;
  };
  return {
    location: source.location,
    open: (file, signal) => source.open(file, signal),
    read: async (expected, signal, onBytes) => {
      const index = probe.shards.findIndex(({ file }) => file === expected.file);
      const shard = probe.shards[index];
      return shard === undefined ? readFile(source, expected, signal, onBytes) : made(shard, index);
    },
  };
}
