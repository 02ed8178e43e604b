// Tuning on a runner without a device: each variant takes the time that the test sets.

import { afterEach, expect, test, vi } from "vitest";

import type { Batch } from "../../src/runtime/batch.js";
import type { Choices } from "../../src/runtime/choices.js";
import { NO_CHOICES } from "../../src/runtime/choices.js";
import type { AdapterEntry, Condition, Manifest, TuningEntry, VariantEntry } from "../../src/runtime/manifest.js";
import { planOf } from "../../src/runtime/plan.js";
import { shippedTuning } from "../../src/runtime/shipped_tuning.js";
import type { TuneOptions } from "../../src/tuning/index.js";
import type { TimedRunner } from "../../src/tuning/variants.js";
import { fastestVariants } from "../../src/tuning/variants.js";
import { lettersBundle } from "../letters_bundle.js";

const row = (name: string, when: Condition = null): VariantEntry => ({
  kernels: [name],
  activation: null,
  needs: [],
  when,
});
const FEW: Condition = ["<=", "S", 4];
const ROWS = {
  embed: [row("few", FEW), row("few 2", FEW), row("tile"), row("tile 2")],
  take_rows: [
    row("attention short", ["and", ["==", "S", "B"], ["<=", "T", 300]]),
    row("attention long", ["==", "S", "B"]),
    row("attention"),
  ],
  argmax: [row("argmax"), row("argmax 2")],
};

interface SeenRequest {
  readonly name: string;
  readonly batch: Batch;
  readonly count: number;
}

class FakeRunner implements TimedRunner {
  readonly manifest: Manifest;
  readonly rows: ReadonlyMap<string, readonly VariantEntry[]> = new Map(Object.entries(ROWS));
  chunk = 64;
  readonly limits = {
    sequences: 4,
    rows: 11,
    groups: [
      { pages: 64, window: Infinity },
      { pages: 10, window: 40 },
    ],
  };
  readonly requests: SeenRequest[] = [];

  /** ``steps``: the milliseconds of each step that does not take 1 ms. */
  constructor(private readonly steps: Readonly<Record<string, (batch: Batch) => number>>) {
    const { manifest } = lettersBundle({ context: 1024 });
    // The hand-made model has no attention; its second step, which has a row for each token, replaces it.
    const plan = planOf(manifest);
    const buffers = { ...plan.buffers, logits: { shape: ["S", 8], dtype: "float32" as const } };
    this.manifest = { ...manifest, plans: { generate: { ...plan, buffers } } };
  }

  time(batch: Batch, _list: string, name: string, count: number): Promise<number> {
    this.requests.push({ name, batch, count });
    return Promise.resolve(count * (this.steps[name]?.(batch) ?? 1));
  }
}

function options(changes: Partial<TuneOptions> = {}): TuneOptions {
  return {
    choices: NO_CHOICES,
    pages: [63, 9, 5],
    idle: () => Promise.resolve(),
    signal: new AbortController().signal,
    ...changes,
  };
}

const tokensOf = (batch: Batch): number => batch.token_ids.length;
const between = (dim: string, above: number, most: number): Condition => ["and", [">", dim, above], ["<=", dim, most]];
const contextOf = (batch: Batch): number => (batch.positions.at(-1) ?? 0) + 1;

afterEach(() => {
  vi.useRealTimers();
});

test("if the compiler's choice is the fastest, or nearly so, no row is put in front", async () => {
  expect(await fastestVariants(new FakeRunner({}), options())).toEqual({});
  expect(
    await fastestVariants(
      new FakeRunner({ "few 2": () => 0.97, "tile 2": () => 0.97, "argmax 2": () => 3 }),
      options(),
    ),
  ).toEqual({});
});

test("the fastest variant is put in front for sizes near the measured one", async () => {
  const fast = {
    "few 2": (batch: Batch) => (tokensOf(batch) === 1 ? 0.5 : 9),
    "tile 2": () => 0.6,
    "argmax 2": () => 0.9,
  };
  expect(await fastestVariants(new FakeRunner(fast), options())).toEqual({
    embed: [
      { when: ["<=", "S", 1], variant: "few 2" },
      { when: [">=", "S", 32], variant: "tile 2" },
      { when: between("S", 1, 4), variant: "tile 2" },
      { when: between("S", 4, 8), variant: "tile 2" },
    ],
    argmax: [
      { when: ["<=", "R", 1], variant: "argmax 2" },
      { when: between("R", 1, 4), variant: "argmax 2" },
      { when: between("R", 4, 8), variant: "argmax 2" },
    ],
  });
});

test("few rows, as of drafts, are measured with all of them sampled, and each size has its own variant", async () => {
  const runner = new FakeRunner({ "few 2": (batch) => (tokensOf(batch) === 3 ? 0.5 : 1) });
  expect(await fastestVariants(runner, options())).toEqual({
    embed: [{ when: between("S", 1, 4), variant: "few 2" }],
  });
  const few = runner.requests.filter(({ batch }) => [3, 6].includes(tokensOf(batch)));
  expect(few.map(({ batch }) => batch.sample_rows.length)).toEqual(few.map(({ batch }) => tokensOf(batch)));
  // A variant for at most four rows is right for more, and may be the fastest.
  expect(
    await fastestVariants(new FakeRunner({ few: (batch) => (tokensOf(batch) === 6 ? 0.5 : 1) }), options()),
  ).toEqual({
    embed: [{ when: between("S", 4, 8), variant: "few" }],
  });
});

test("prompts are measured with the chunk that steps have, and short ones if it is longer", async () => {
  const runner = new FakeRunner({ "tile 2": (batch) => (tokensOf(batch) === 256 ? 0.6 : 1) });
  runner.chunk = 256;
  expect(await fastestVariants(runner, options())).toEqual({
    embed: [{ when: [">=", "S", 128], variant: "tile 2" }],
  });
  expect([...new Set(runner.requests.map(({ batch }) => tokensOf(batch)))]).toEqual([1, 256, 64, 3, 6]);
  const shorter = new FakeRunner({ "tile 2": (batch) => (tokensOf(batch) === 64 ? 0.6 : 1) });
  shorter.chunk = 256;
  expect(await fastestVariants(shorter, options())).toEqual({
    embed: [{ when: ["and", [">=", "S", 32], ["<", "S", 128]], variant: "tile 2" }],
  });
});

test("a list that depends on the context length is measured at a short and the longest context", async () => {
  const runner = new FakeRunner({ "attention short": (batch) => contextOf(batch) / 100, "attention long": () => 2 });
  expect(await fastestVariants(runner, options())).toEqual({
    take_rows: [
      { when: ["and", ["<=", "S", 1], ["<=", "T", 256]], variant: "attention" },
      { when: ["and", ["<=", "S", 1], [">=", "T", 512]], variant: "attention" },
    ],
  });
  const prefills = runner.requests.filter(({ name, batch }) => name.startsWith("attention") && tokensOf(batch) > 1);
  expect(prefills).toEqual([]);
});

test("tuning writes only to its borrowed pages, and reads pages of the pools", async () => {
  const runner = new FakeRunner({});
  await fastestVariants(runner, options());
  for (const { batch } of runner.requests) {
    expect(new Set(batch.slots.map((slot) => slot >> 4))).toEqual(new Set([63]));
    expect(batch.page_ids.length).toBe(Math.ceil(contextOf(batch) / 16));
    expect(Math.max(...batch.page_ids)).toBeLessThan(64);
    expect(new Set(batch.window_slots?.map((slot) => slot >> 4))).toEqual(new Set([9]));
    expect(batch.state_slots).toEqual([5, 5]);
    expect(batch.window_page_ids?.length).toBe(batch.page_ids.length);
    expect(Math.max(...(batch.window_page_ids ?? []))).toBeLessThan(10);
  }
  expect(runner.requests.some(({ batch }) => contextOf(batch) === 1024)).toBe(true);
});

test("a slice is short, and a variant that is much slower in its first run is not measured again", async () => {
  const times: Readonly<Record<string, number>> = { few: 0.1, "few 2": 0.001, "argmax 2": 6 };
  const runner = new FakeRunner({
    ...Object.fromEntries(Object.entries(times).map(([name, ms]) => [name, () => ms])),
    tile: () => 30,
  });
  await fastestVariants(runner, options());
  const slices = runner.requests
    .filter(({ name }) => name !== "tile")
    .map(({ name, count }) => count * (times[name] ?? 1));
  expect(Math.max(...slices)).toBeLessThanOrEqual(10);
  expect(runner.requests.filter(({ name, batch }) => name === "tile" && tokensOf(batch) === 1).length).toBe(1);
  expect(runner.requests.filter(({ name, batch }) => name === "argmax 2" && tokensOf(batch) === 1).length).toBe(1);
});

test("variants that are off are not measured, and those in front by a record are the reference", async () => {
  const choices: Choices = {
    off: new Set(["few 2", "tile 2", "argmax 2"]),
    front: { embed: [{ when: null, variant: "tile" }] },
  };
  const runner = new FakeRunner({ few: () => 0.5 });
  expect(await fastestVariants(runner, options({ choices }))).toEqual({
    embed: [
      { when: ["<=", "S", 1], variant: "few" },
      { when: [">=", "S", 32], variant: "few" },
      { when: between("S", 1, 4), variant: "few" },
      { when: between("S", 4, 8), variant: "few" },
    ],
  });
  expect(new Set(runner.requests.map(({ name }) => name)).has("few 2")).toBe(false);
});

test("tuning waits for the device to be idle before each slice, and ends when it is aborted", async () => {
  const controller = new AbortController();
  const runner = new FakeRunner({});
  let waits = 0;
  const idle = (): Promise<void> => {
    expect(runner.requests.length).toBe(waits++);
    if (waits === 5) controller.abort(new Error("closed"));
    return Promise.resolve();
  };
  await expect(fastestVariants(runner, options({ idle, signal: controller.signal }))).rejects.toThrow("closed");
  expect(runner.requests.length).toBe(4);
});

test("lists that are not measured within five seconds stay as the compiler arranged them", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const fast = { "few 2": () => 0.5, "tile 2": () => 0.5, "argmax 2": () => 0.5 };
  class SlowRunner extends FakeRunner {
    override time(batch: Batch, list: string, name: string, count: number): Promise<number> {
      vi.advanceTimersByTime(tokensOf(batch) === 1 ? 1 : 3001);
      return super.time(batch, list, name, count);
    }
  }
  // Single tokens are measured first, then one list for a prefill.
  const tuned = await fastestVariants(new SlowRunner(fast), options());
  expect(tuned.argmax).toHaveLength(1);
  expect(tuned.embed).toHaveLength(2);
  class SlowerRunner extends FakeRunner {
    override time(batch: Batch, list: string, name: string, count: number): Promise<number> {
      vi.advanceTimersByTime(3001);
      return super.time(batch, list, name, count);
    }
  }
  expect(await fastestVariants(new SlowerRunner(fast), options())).toEqual({
    embed: [{ when: ["<=", "S", 1], variant: "few 2" }],
  });
});

const NAMELESS: AdapterEntry = { vendor: "", architecture: "", device: "", description: "" };
const record = (adapter: Partial<AdapterEntry>, activation: TuningEntry["activation"] = "float16"): TuningEntry => ({
  adapter: { ...NAMELESS, ...adapter },
  activation,
  variants: {},
  steps: null,
});
const nvidia = record({ vendor: "nvidia" });
const ampere = record({ vendor: "nvidia", architecture: "ampere" });
const lovelace = record({ vendor: "nvidia", architecture: "lovelace" });
const named = record({ vendor: "nvidia", architecture: "ampere", device: "0x2204", description: "RTX 3090" });
const records = [
  record({}),
  record({ vendor: "nvidia", architecture: "ampere" }, "float32"),
  nvidia,
  named,
  ampere,
  lovelace,
];
const find = (adapter: Partial<AdapterEntry>): TuningEntry | null =>
  shippedTuning(records, { activation: "float16", adapterEntry: { ...NAMELESS, ...adapter } });

test("the record with the most matching parts and no other parts is used", () => {
  expect(find({ vendor: "nvidia", architecture: "ampere" })).toBe(ampere);
  expect(find({ vendor: "nvidia", architecture: "ampere", device: "0x2204", description: "RTX 3090" })).toBe(named);
  expect(find({ vendor: "nvidia", architecture: "ampere", device: "0x2206", description: "RTX 3080" })).toBe(ampere);
  expect(find({ vendor: "nvidia", architecture: "blackwell" })).toBe(nvidia);
});

test("an adapter without a record, or without a name, gets none", () => {
  expect(find({ vendor: "apple", architecture: "metal-3" })).toBe(null);
  expect(find({})).toBe(null);
});
