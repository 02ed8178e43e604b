import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

import { readAdapter } from "../../src/adapters/read.js";
import { NearfarError, RequestError } from "../../src/errors.js";
import type { LoraEntry, Manifest } from "../../src/runtime/manifest.js";

interface Case {
  readonly name: string;
  readonly config: object;
  /** The bytes of adapter_model.safetensors as base64. */
  readonly weights: string;
  readonly states?: Readonly<Record<string, readonly number[]>>;
  readonly error?: string;
}

const { model, lora, shapes, cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/adapters.json", import.meta.url), "utf8"),
) as { model: string; lora: LoraEntry; shapes: Record<string, readonly number[]>; cases: readonly Case[] };

function manifestOf(accepts: LoraEntry | null): Manifest {
  const states = Object.fromEntries(
    Object.entries(shapes).map(([name, shape]) => [name, { shape: ["M", ...shape], dtype: "float32" }]),
  );
  return {
    model,
    target: "webgpu",
    lora: accepts,
    embedding: null,
    classifier: null,
    plans: { generate: { states } },
  } as unknown as Manifest;
}

test.each(cases)("$name: the values or the error of the vectors", async ({ config, weights, states, error }) => {
  const files = { config: JSON.stringify(config), weights: new Uint8Array(Buffer.from(weights, "base64")) };
  const reading = readAdapter(files, manifestOf(lora));
  if (error !== undefined) {
    await expect(reading).rejects.toThrow(NearfarError);
    await expect(reading).rejects.toThrow(new RegExp(error));
    return;
  }
  const found = await reading;
  expect(Object.fromEntries([...found.states].map(([name, values]) => [name, [...values]]))).toEqual(
    Object.fromEntries(
      Object.entries(states ?? {}).map(([name, values]) => [name, values.map((value) => Math.fround(value))]),
    ),
  );
});

test("the id depends on the values", async () => {
  const idOf = async ({ config, weights }: Case): Promise<string> =>
    (await readAdapter({ config: JSON.stringify(config), weights: Buffer.from(weights, "base64") }, manifestOf(lora)))
      .id;
  const [first, second] = cases as readonly [Case, Case];
  expect(await idOf(first)).toBe(await idOf(first));
  expect(await idOf(first)).not.toBe(await idOf(second));
  expect(await idOf({ ...first, config: { ...first.config, lora_alpha: 3 } })).not.toBe(await idOf(first));
});

test("modules below a wrapper are those of the text model", async () => {
  const [{ config, weights }] = cases as readonly [Case];
  const bytes = Buffer.from(weights, "base64");
  const end = 8 + Number(bytes.readBigUInt64LE(0));
  const header = bytes.toString("utf8", 8, end).replaceAll("base_model.model.model.", "base_model.model.backbone.");
  expect(header).toContain("backbone");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(Buffer.byteLength(header)));
  const wrapped = new Uint8Array(Buffer.concat([length, Buffer.from(header), bytes.subarray(end)]));
  const read = (each: Uint8Array<ArrayBuffer>) =>
    readAdapter({ config: JSON.stringify(config), weights: each }, manifestOf(lora));
  expect((await read(wrapped)).states).toEqual((await read(new Uint8Array(bytes))).states);
});

test("a bundle without adapters refuses them", async () => {
  const reading = readAdapter({ config: "{}", weights: new Uint8Array() }, manifestOf(null));
  await expect(reading).rejects.toThrow(RequestError);
  await expect(reading).rejects.toThrow("compile it with --lora-rank");
});
