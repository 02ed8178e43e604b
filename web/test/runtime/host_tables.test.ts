// Rows of tables that stay on the host: the same bits as in Python, from any part of a table.

import { readFileSync } from "node:fs";

import { expect, test, vi } from "vitest";

import { DeviceError, RequestError } from "../../src/errors.js";
import { gather, isTable } from "../../src/runtime/host_tables.js";
import { checkManifest } from "../../src/runtime/load_manifest.js";
import type { Manifest, PlanEntry, PlaneEntry, WeightEntry } from "../../src/runtime/manifest.js";
import { planOf } from "../../src/runtime/plan.js";
import { lettersBundle } from "../letters_bundle.js";

interface Case {
  readonly quantization: string;
  readonly shape: readonly [number, number];
  readonly scale: number;
  readonly planes: readonly (Pick<PlaneEntry, "name" | "dtype" | "shape"> & { readonly base64: string })[];
  readonly token_ids: readonly number[];
  readonly rows: string;
}

const { cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/host_tables.json", import.meta.url), "utf8"),
) as { readonly cases: readonly Case[] };

/** The table of a case in parts of ``rows`` rows, each in a shard of its own after some other bytes. */
function split({ quantization, shape, planes }: Case, rows: number): [Record<string, WeightEntry>, Map<number, Blob>] {
  const weights: Record<string, WeightEntry> = {};
  const shards = new Map<number, Blob>();
  for (let first = 0, shard = 7; first < shape[0]; first += rows, shard++) {
    const count = Math.min(rows, shape[0] - first);
    let bytes = Buffer.alloc(256);
    const own = planes.map(({ base64, ...plane }): PlaneEntry => {
      const whole = Buffer.from(base64, "base64");
      const width = whole.length / shape[0];
      const [offset, part] = [bytes.length, whole.subarray(first * width, (first + count) * width)];
      bytes = Buffer.concat([bytes, part]);
      return { ...plane, shape: [count, plane.shape[1] ?? 0], shard, offset, size: part.length };
    });
    weights[`part${shard}`] = { shape: [count, shape[1]], quantization, layout: "rows", planes: own };
    shards.set(shard, new Blob([bytes]));
  }
  return [weights, shards];
}

function planWith(weights: readonly string[], scale: number): PlanEntry {
  return { ...planOf(lettersBundle().manifest), gathered: { rows: { weights, scale } } };
}

/** The bytes that are written to the input. */
async function gathered(
  weights: Record<string, WeightEntry>,
  shards: ReadonlyMap<number, Blob>,
  scale: number,
  tokenIds: readonly number[],
): Promise<Buffer> {
  const send = await gather({ host_weights: weights }, planWith(Object.keys(weights), scale), shards, tokenIds);
  const written: Buffer[] = [];
  const queue = {
    writeBuffer: (_: unknown, offset: number, data: Float32Array) =>
      written.push(Buffer.from(data.buffer, offset + data.byteOffset, data.byteLength)),
  };
  send(queue as unknown as GPUQueue, new Map([["rows", {} as GPUBuffer]]));
  expect(written).toHaveLength(1);
  return written[0] ?? Buffer.alloc(0);
}

test.each(cases.map((each) => [each.quantization, each] as const))(
  "%s: rows equal those of Python",
  async (_, each) => {
    for (const rows of [5, 2, 1]) {
      const [weights, shards] = split(each, rows);
      for (const weight of Object.values(weights)) expect(isTable(weight)).toBe(true);
      expect((await gathered(weights, shards, each.scale, each.token_ids)).toString("base64")).toBe(each.rows);
    }
  },
);

test("the ids of all tokens must be known, and a file that is gone is an error of the device", async () => {
  const [first] = cases;
  if (first === undefined) throw new Error("no cases");
  const [weights, shards] = split(first, 5);
  await expect(gathered(weights, shards, 1, [2, -1])).rejects.toThrow(RequestError);
  vi.spyOn(Blob.prototype, "arrayBuffer").mockRejectedValueOnce(new DOMException("it is gone", "NotFoundError"));
  await expect(gathered(weights, shards, 1, [2])).rejects.toThrow(DeviceError);
});

/** A manifest with a table of 8 rows on the host. */
function withTable(change: Partial<WeightEntry> = {}, input: object = {}, parts = ["far"]): Manifest {
  const { manifest } = lettersBundle();
  const plane = { name: "w", dtype: "float32", shape: [8, 32], shard: 1, offset: 0, size: 1024 } as const;
  const far: WeightEntry = { shape: [8, 20], quantization: "f32", layout: "rows", planes: [plane], ...change };
  const shard = { file: "weights/00001.bin", size: 1024, sha256: "0".repeat(64) };
  const plan = planOf(manifest);
  const inputs = { ...plan.inputs, far_rows: { shape: ["S", 20], dtype: "float32" as const, ...input } };
  const generate = { ...plan, inputs, gathered: { far_rows: { weights: parts, scale: 1 } } };
  return { ...manifest, shards: [...manifest.shards, shard], host_weights: { far }, plans: { generate } };
}

const PLANE = withTable().host_weights.far?.planes[0];

test("a manifest with a table on the host is accepted", () => {
  expect(() => checkManifest(withTable())).not.toThrow();
});

test("planes of int8 have one byte for each number", () => {
  const at = { shard: 1 } as const;
  const planes: readonly PlaneEntry[] = [
    { name: "q", dtype: "uint32", shape: [8, 4], offset: 0, size: 128, ...at },
    { name: "h", dtype: "uint32", shape: [8, 2], offset: 128, size: 64, ...at },
    { name: "s", dtype: "int8", shape: [8, 2], offset: 192, size: 16, ...at },
    { name: "su", dtype: "float16", shape: [8, 1], offset: 208, size: 16, ...at },
  ];
  expect(() => checkManifest(withTable({ quantization: "q6g16_i8", planes }))).not.toThrow();
  const wide = planes.map((plane) => (plane.name === "s" ? { ...plane, size: 64 } : plane));
  expect(() => checkManifest(withTable({ quantization: "q6g16_i8", planes: wide }))).toThrow("weights.far");
});

// Planes that would fit, if a part of the name were ignored.
test.each<readonly [string, readonly (readonly [PlaneEntry["dtype"], number])[]]>([
  [
    "q4c_i8",
    [
      ["uint32", 4],
      ["int8", 1],
      ["float16", 1],
    ],
  ],
  [
    "q4g32z_i8",
    [
      ["uint32", 4],
      ["int8", 2],
      ["float16", 2],
    ],
  ],
  [
    "q2f16",
    [
      ["uint32", 2],
      ["float16", 1],
    ],
  ],
  [
    "q4c16",
    [
      ["uint32", 4],
      ["float16", 1],
    ],
  ],
])("%s is not a format", (quantization, own) => {
  const planes = own.map(([dtype, width]) => ({ name: "w", shard: 1, offset: 0, size: 0, dtype, shape: [8, width] }));
  expect(isTable({ shape: [8, 20], quantization, layout: "rows", planes })).toBe(false);
});

test.each<readonly [string, Manifest]>([
  ["an offset beyond the shard", withTable({ planes: [{ ...PLANE, offset: 4 } as PlaneEntry] })],
  ["a shard that there is not", withTable({ planes: [{ ...PLANE, shard: 2 } as PlaneEntry] })],
  ["a plane that is too narrow", withTable({ planes: [{ ...PLANE, shape: [8, 16], size: 512 } as PlaneEntry] })],
  ["a plane with too few rows", withTable({ planes: [{ ...PLANE, shape: [4, 32], size: 512 } as PlaneEntry] })],
  ["an unknown format", withTable({ quantization: "q5" })],
  ["a vector", withTable({ quantization: null, shape: [8] })],
  [
    "a table with too few rows",
    withTable({ shape: [4, 20], planes: [{ ...PLANE, shape: [4, 32], size: 512 } as PlaneEntry] }),
  ],
  ["a format with another dtype", withTable({ quantization: "f16" })],
  ["an input that is too narrow", withTable({}, { shape: ["S", 19] })],
  ["an input of other rows", withTable({}, { shape: ["R", 20] })],
  ["an input of integers", withTable({}, { dtype: "int32" })],
  ["a table of the device", withTable({}, {}, ["table"])],
  ["no table", withTable({}, {}, [])],
])("%s is refused", (_, manifest) => {
  expect(() => checkManifest(manifest)).toThrow("consistent with the rest of the manifest");
});
