// A memory budget for a model and its draft.

import { describe, expect, test } from "vitest";

import type { Planner } from "../../src/drafts/memory.js";
import { shareMemory } from "../../src/drafts/memory.js";
import type { BufferEntry, Manifest } from "../../src/runtime/manifest.js";
import { planMemory } from "../../src/runtime/memory_plan.js";
import { lettersBundle } from "../letters_bundle.js";

const CONTEXT = 4096;
const plan: Planner = (manifest, options) => planMemory(manifest, "float32", options);

/** A model with this number of layers. */
function modelOf(layers: number, context = CONTEXT): Manifest {
  const { manifest } = lettersBundle();
  const { generate } = manifest.plans;
  if (generate === undefined) throw new Error("no plan");
  const entry: BufferEntry = { shape: ["P", 2, 1, 16, 64], dtype: "activation" };
  const states = Object.fromEntries(Array.from({ length: layers }, (_, layer) => [`kv${layer}`, entry]));
  const spec = { ...manifest.spec, num_layers: layers, max_position_embeddings: context };
  return { ...manifest, context, page_size: 16, spec, plans: { generate: { ...generate, states } } };
}

const large = modelOf(10);
const small = modelOf(6);
const whole = shareMemory(plan, large, small, {});

test("without a budget, a draft has room for the model's context, and its bytes are part of the plan", () => {
  const [own, others] = [
    planMemory(large, "float32"),
    planMemory(small, "float32", { stateSnapshots: 4, draftTokens: 0, prefillChunk: 64 }),
  ];
  for (const key of ["weightBytes", "keyValueBytes", "workingBytes", "totalBytes"] as const)
    expect(whole.plan[key]).toBe(own[key] + others[key]);
  expect(whole.plan).toMatchObject({ pages: own.pages, context: CONTEXT, draftBytes: others.totalBytes });
  // A draft with a longer context than the model's does not use it, one with a shorter context has all of it.
  expect(shareMemory(plan, large, modelOf(6, 2 * CONTEXT), {}).plan.keyValueBytes).toBe(whole.plan.keyValueBytes);
  const short = modelOf(6, 1024);
  expect(shareMemory(plan, large, short, {}).plan.draftBytes).toBe(
    plan(short, { stateSnapshots: 4, draftTokens: 0, prefillChunk: 64 }).totalBytes,
  );
});

describe.each([0.3, 0.6, 0.9])("%f of the keys and values", (share) => {
  const memoryBudget = whole.plan.totalBytes - (1 - share) * whole.plan.keyValueBytes;

  test("a budget is used by both, which have room for equally long sequences", () => {
    const { plan: both, large: options, small: own } = shareMemory(plan, large, small, { memoryBudget });
    expect(both.totalBytes).toBeLessThanOrEqual(memoryBudget);
    expect(both.totalBytes).toBeGreaterThan(0.98 * memoryBudget);
    const [model, draft] = [plan(large, options), plan(small, own)];
    expect(both).toMatchObject({ context: model.context, draftBytes: draft.totalBytes, fits: false });
    expect(Math.abs(model.context - draft.context)).toBeLessThanOrEqual(32);
  });
});

test("a budget that is too small for both is refused with the bytes that they need", () => {
  const needed = plan(large, { pages: 1 }).totalBytes + plan(small, { pages: 1, draftTokens: 0 }).totalBytes;
  expect(shareMemory(plan, large, small, { memoryBudget: needed }).plan.context).toBe(16);
  expect(() => shareMemory(plan, large, small, { memoryBudget: needed - 1 })).toThrow(
    /The model and its draft take at least [\d.]+ kB on the device, the budget is [\d.]+ kB; raise it, or leave out the draft/,
  );
});
