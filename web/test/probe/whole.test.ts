// The complete plan on a few layers' weights, and the variants that measurements need.

import { expect, test } from "vitest";

import type { ProbeFile } from "../../src/probe/schema.js";
import { layerEnds, neededVariants, wholePlan } from "../../src/probe/whole.js";
import type { Condition, Manifest, PlanEntry, StepEntry } from "../../src/runtime/manifest.js";

const step = (op: string, inputs: Readonly<Record<string, string>>, y: string): StepEntry => ({
  op,
  variants: op,
  inputs,
  outputs: { y },
  attrs: {},
});

/** A plan of these layers. ``rows``: the columns of its buffer "buffer1". */
function planOf(layers: readonly number[], columns: number): PlanEntry {
  const buffer = (shape: (string | number)[]) => ({ shape, dtype: "activation" });
  return {
    inputs: {},
    states: Object.fromEntries(layers.map((layer) => [`layers.${layer}.kv`, buffer(["P", 1])])),
    constants: {},
    buffers: { buffer0: buffer(["S", 8]), buffer1: buffer(["S", columns]), logits: buffer(["R", 4]) },
    steps: [
      step("embed", { table: "embed.weight" }, "buffer0"),
      ...layers.flatMap((layer) => [
        step("linear", { x: "buffer0", weight: `model.layers.${layer}.weight` }, "buffer1"),
        step("attention", { x: "buffer1", kv: `layers.${layer}.kv` }, "buffer0"),
      ]),
      step("take_rows", { x: "buffer0", rows: "sample_rows" }, "buffer1"),
      step("head", { x: "buffer1", weight: "embed.weight" }, "logits"),
      step("top_logprobs", { x: "logits" }, "logits"),
    ],
    outputs: { logits: "logits" },
    gathered: {},
  } as unknown as PlanEntry;
}

const ROWS: Readonly<Record<string, readonly (readonly [kernel: string, when: Condition])[]>> = {
  linear: [
    ["few", ["<=", "S", 4]],
    ["eight", ["<=", "S", 8]],
    ["many", null],
  ],
  attention: [
    ["one", ["==", "S", "B"]],
    ["tile", ["==", ["min", "S", 9], 9]],
    ["plain", null],
  ],
};

const MANIFEST = {
  plans: { generate: planOf([0, 1, 2, 3], 16) },
  weights: Object.fromEntries(
    ["embed.weight", ...[0, 1, 2, 3].map((layer) => `model.layers.${layer}.weight`)].map((name) => [name, {}]),
  ),
  variants: Object.fromEntries(
    ["embed", "linear", "attention", "take_rows", "head", "top_logprobs"].map((list) => [
      list,
      (ROWS[list] ?? [[list, null]]).map(([kernel, when]) => ({
        kernels: [kernel],
        activation: null,
        needs: [],
        when,
      })),
    ]),
  ),
  embedding: null,
  classifier: null,
} as unknown as Manifest;

test("each layer has the weights and states of the one that stands for it, and an array of another shape another name", () => {
  const probed = planOf([0, 1], 32);
  const whole = wholePlan(MANIFEST, { layers: [0, 1, 0, 1] } as unknown as ProbeFile, probed);
  const read = whole.steps.flatMap(({ inputs }) => Object.values(inputs));
  expect(read.filter((name) => name.endsWith(".kv"))).toEqual([
    "layers.0.kv",
    "layers.1.kv",
    "layers.0.kv",
    "layers.1.kv",
  ]);
  expect(read).toContain("model.layers.1.weight");
  expect(read).not.toContain("model.layers.2.weight");
  expect(read).toContain("whole.buffer1");
  expect(Object.keys(whole.buffers)).toEqual(["buffer0", "whole.buffer1", "logits"]);
  expect(Object.keys(whole.states)).toEqual(["layers.0.kv", "layers.1.kv"]);
  expect(whole.steps.map(({ op }) => op)).not.toContain("top_logprobs");
});

test("a layer ends before the next one, and the last before the rows are sampled", () => {
  expect(layerEnds(MANIFEST)).toEqual([3, 5, 7, 9]);
});

test("only the variants that batches run are needed, and those of tests if no other can run them", () => {
  const names = (batches: object[], tests: object[]) => {
    const found = neededVariants(
      MANIFEST,
      "float32",
      new Set(),
      { off: new Set(), front: {} },
      batches as never,
      tests as never,
    );
    return ["linear", "attention"].map((list) => found[list]?.map(({ kernels }) => kernels[0]));
  };
  const [token, chunk] = [
    { S: 1, B: 1 },
    { S: 64, B: 1 },
  ];
  expect(names([token, chunk], [])).toEqual([
    ["few", "many"],
    ["one", "tile"],
  ]);
  // The kernel for many rows computes 8 too, but the tile needs 9.
  expect(names([token, chunk], [{ S: 8, B: 1 }])).toEqual([
    ["few", "many"],
    ["one", "tile", "plain"],
  ]);
  expect(names([token, chunk], [{ S: 12, B: 1 }])).toEqual([
    ["few", "many"],
    ["one", "tile"],
  ]);
});
