// Tests the page groups of a manifest, and the memory that they need.

import { expect, test } from "vitest";

import type { BufferEntry, Manifest } from "../../src/runtime/manifest.js";
import { seeingBundle } from "../seeing_letters.js";
import { capacityOf, limitsOf } from "../../src/runtime/memory.js";
import { planMemory, poolWithin } from "../../src/runtime/memory_plan.js";
import { pagesOfSequence } from "../../src/runtime/page_groups.js";
import { lettersBundle, windowedBundle } from "../letters_bundle.js";

/** The layers of Gemma 3 1B: every 6th one attends to the complete context, the others to 512 tokens. */
const GEMMA = Array.from({ length: 26 }, (_, layer) => (layer % 6 === 5 ? null : 512));
const CONTEXT = 32_768;

/** Gemma 3 1B's keys and values, with one page group if all layers attend to the complete context. */
function gemma(windows: readonly (number | null)[]): Manifest {
  const isWindowed = windows.some((window) => window !== null);
  const { manifest } = isWindowed ? windowedBundle(512) : lettersBundle();
  const { generate } = manifest.plans;
  if (generate === undefined) throw new Error("no plan");
  const states = Object.fromEntries(
    windows.map((window, layer): [string, BufferEntry] => [
      `kv${layer}`,
      { shape: [window === null ? "P" : "PW", 2, 1, 16, 256], dtype: "activation" },
    ]),
  );
  const spec = { ...manifest.spec, num_layers: 26, windows, max_position_embeddings: CONTEXT };
  return { ...manifest, context: CONTEXT, spec, plans: { generate: { ...generate, states } } };
}

test("a sequence needs the pages of its window and of a step, but no more than its context has", () => {
  const sizes = { context: 100, pageSize: 16, maxTokens: 24 };
  expect(pagesOfSequence({ window: Infinity }, sizes)).toBe(7);
  expect(pagesOfSequence({ window: 33 }, sizes)).toBe(7);
  expect(pagesOfSequence({ window: 17 }, sizes)).toBe(6);
});

test("Gemma 3 1B at 32k tokens needs at most a quarter of the memory of full attention", () => {
  const whole = planMemory(gemma(GEMMA.map(() => null)), "float16", { prefillChunk: 64 });
  const windowed = planMemory(gemma(GEMMA), "float16", { prefillChunk: 64 });
  expect(whole.keyValueBytes).toBe(2049 * 26 * 2 * 16 * 256 * 2);
  // 4 sequences, each with 512 tokens, a step of 64, and 2 partly filled pages; and 1 page for tuning.
  expect(windowed.keyValueBytes).toBe((2049 * 4 + (4 * (32 + 4 + 2) + 1) * 22) * 2 * 16 * 256 * 2);
  expect(windowed.keyValueBytes).toBeLessThan(whole.keyValueBytes / 4);
  expect(windowed).toMatchObject({ pages: 2049, context: CONTEXT, fits: true });
});

test("a budget limits the pages of both groups, and is used up to a page", () => {
  const manifest = gemma(GEMMA);
  const { totalBytes } = planMemory(manifest, "float16", { pages: 1 });
  const fixed = totalBytes - 26 * 2 * 16 * 256 * 2;
  for (const memoryBudget of [fixed + 30e6, fixed + 60e6, fixed + 100e6]) {
    const plan = planMemory(manifest, "float16", { memoryBudget });
    const next = planMemory(manifest, "float16", { pages: plan.pages + 1 });
    expect(plan.totalBytes).toBeLessThanOrEqual(memoryBudget);
    expect(next.totalBytes).toBeGreaterThan(memoryBudget);
    expect(plan).toMatchObject({ context: 16 * plan.pages, fits: false });
  }
  expect(() => planMemory(manifest, "float16", { memoryBudget: fixed })).toThrow("The model takes at least");
});

test("a budget without the page for tuning still fits the context", () => {
  const { manifest } = lettersBundle();
  const { totalBytes, pageBytes } = planMemory(manifest, "float32");
  const pool = poolWithin(manifest, "float32", { memoryBudget: totalBytes - pageBytes });
  expect(limitsOf(manifest, pool)).toMatchObject({ context: 256, groups: [{ pages: 16 }] });
});

test("only layers with a window within the context have fewer pages", () => {
  const groups = (windows: readonly (number | null)[], context = 256): unknown => {
    const { manifest } = lettersBundle({ context });
    return limitsOf({ ...manifest, spec: { ...manifest.spec, windows } }, { maxSequences: 2 }).groups;
  };
  expect(groups([])).toEqual([{ pages: 17, window: Infinity }]);
  // A bundle of an earlier version has one group for all of its layers.
  expect(groups([null, 30])).toEqual([{ pages: 17, window: Infinity }]);
  expect(groups([256, 30])).toEqual([{ pages: 17, window: Infinity }]);
  expect(groups([10, 30])).toEqual([{ pages: 17, window: 30 }]);
  expect(groups([10, 30], 1024)).toEqual([{ pages: 17, window: 30 }]);
  const { manifest } = windowedBundle(40);
  expect(limitsOf(manifest, { maxSequences: 1 })).toMatchObject({
    context: 256,
    groups: [
      { pages: 17, window: Infinity },
      { pages: 10, window: 40 },
    ],
  });
  expect(capacityOf(manifest, { maxSequences: 1, pages: 5 })).toMatchObject({ P: 5, PW: 5, L: 16, LW: 16 });
});

test("a batch holds a picture that is seen both ways", () => {
  const { manifest } = seeingBundle();
  const { vision } = manifest.spec;
  if (vision === null) throw new Error("the bundle sees no pictures");
  const seen = (both_ways: "none" | "windows"): number =>
    limitsOf(
      { ...manifest, spec: { ...manifest.spec, vision: { ...vision, both_ways, block: 2, tile_patches: 400 } } },
      { maxSequences: 1 },
    ).tokens;
  expect([seen("none"), seen("windows")]).toEqual([64, 100]);
});

test("layers with windows need no more pages for a longer context", () => {
  const { manifest } = lettersBundle({ context: 1024 });
  const windowed = { ...manifest, spec: { ...manifest.spec, windows: [10, 30] } };
  // 2 pages of the window, 4 of a step, and 2; and 1 page for tuning.
  expect(limitsOf(windowed, { maxSequences: 1 })).toMatchObject({ context: 1024, groups: [{ pages: 9 }] });
  // A number of pages limits the context, as if all layers attended to all tokens.
  expect(limitsOf(windowed, { maxSequences: 1, pages: 9 }).context).toBe(144);
  const { totalBytes } = planMemory(windowed, "float32", { maxSequences: 1 });
  for (const [memoryBudget, context] of [
    [totalBytes, 1024],
    [totalBytes - 1, 128],
  ] as const) {
    expect(planMemory(windowed, "float32", { maxSequences: 1, memoryBudget }).context).toBe(context);
    expect(limitsOf(windowed, poolWithin(windowed, "float32", { maxSequences: 1, memoryBudget })).context).toBe(
      context,
    );
  }
});
