// Tests what of a mixture's experts a device holds. Two layers have 8 experts, of which a token chooses 2; an expert has
// 1,000 bytes in the first layer and 600 in the second, whose weights are in two parts.

import { expect, test } from "vitest";

import { mixtureOf } from "../../src/runtime/expert_layers.js";
import type { Manifest, StepEntry, WeightEntry } from "../../src/runtime/manifest.js";
import { planMemory } from "../../src/runtime/memory_plan.js";
import { lettersBundle } from "../letters_bundle.js";

const EXPERTS = 8;

function mixture(): Manifest {
  const { manifest } = lettersBundle();
  const { generate } = manifest.plans;
  if (generate === undefined) throw new Error("no plan");
  const step = (op: string, inputs: Record<string, string>, outputs: Record<string, string>): StepEntry => ({
    op,
    variants: op,
    inputs,
    outputs,
    attrs: {},
  });
  const route = step("route", { logits: "x" }, { chosen: "chosen", weights: "factors" });
  const project = (weight: string): StepEntry =>
    step("expert_linear", { x: "x", chosen: "chosen", weight }, { y: "y" });
  const weight = (bytes: number): WeightEntry => ({
    shape: [EXPERTS, bytes / 4],
    quantization: "f32",
    layout: "rows",
    planes: [{ name: "w", dtype: "float32", shape: [EXPERTS, bytes / 4], shard: 0, offset: 0, size: EXPERTS * bytes }],
  });
  const steps = [
    ...[route, project("a"), project("b"), step("combine", {}, {})],
    ...[route, project("c.part0"), step("gate", {}, {}), project("c.part1")],
  ];
  const experts = {
    number: EXPERTS,
    chosen: 2,
    intermediate_size: 4,
    router: "softmax",
    normalized: true,
    scale: 1,
    dense_layers: [],
    biases: false,
    choice_bias: false,
    limit: null,
    slope: 1,
    shift: 0,
  } as const;
  return {
    ...manifest,
    spec: { ...manifest.spec, experts },
    plans: { generate: { ...generate, steps } },
    weights: { ...manifest.weights, a: weight(400), b: weight(600), "c.part0": weight(400), "c.part1": weight(200) },
  };
}

test("a layer's experts are computed by the steps from their first projection to the last", () => {
  expect(mixtureOf(mixture())).toEqual({
    layers: [
      { start: 1, end: 3, chosen: "chosen", weights: ["a", "b"] },
      { start: 5, end: 8, chosen: "chosen", weights: ["c.part0", "c.part1"] },
    ],
    expertBytes: 1600,
    number: 8,
    chosen: 2,
  });
  expect(mixtureOf(lettersBundle().manifest)).toBeNull();
});

test("a budget below all experts holds those that fit beside keys and values, at least those of a token", () => {
  const manifest = mixture();
  // With a smaller budget there is no larger chunk.
  const whole = planMemory(manifest, "float32", { prefillChunk: 64 });
  expect(whole.experts).toBeNull();
  const least = whole.totalBytes - whole.keyValueBytes + whole.pageBytes;
  expect(planMemory(manifest, "float32", { memoryBudget: least }).experts).toBeNull();
  const plan = planMemory(manifest, "float32", { memoryBudget: least - 1 });
  expect(plan.experts).toBeGreaterThanOrEqual(2);
  expect(plan.experts).toBeLessThan(8);
  expect(plan.totalBytes).toBeLessThan(least);
  expect(plan.weightBytes).toBe(whole.weightBytes - (8 - (plan.experts ?? 0)) * 1600);
  // The experts of a token and one page.
  const smallest = least - 6 * 1600;
  expect(planMemory(manifest, "float32", { memoryBudget: smallest })).toMatchObject({ experts: 2, pages: 1 });
  expect(() => planMemory(manifest, "float32", { memoryBudget: smallest - 1 })).toThrow("The model takes at least");
});

test("expertMemory sets the bytes of experts, and below those of a token it is refused", () => {
  const manifest = mixture();
  expect(planMemory(manifest, "float32", { expertMemory: 4 * 1600 + 1599 }).experts).toBe(4);
  expect(planMemory(manifest, "float32", { expertMemory: 8 * 1600 }).experts).toBeNull();
  expect(() => planMemory(manifest, "float32", { expertMemory: 2 * 1600 - 1 })).toThrow("chooses 2 of 8 experts");
});
