// The self-test's search on a runner without a device: its lists contain variants that compute correctly, or wrongly
// for some batches.

import { expect, test } from "vitest";

import type { Batch } from "../../src/runtime/batch.js";
import { dimsOf } from "../../src/runtime/batch.js";
import type { Choices } from "../../src/runtime/choices.js";
import { NO_CHOICES, arrange, variantName } from "../../src/runtime/choices.js";
import type { Dims } from "../../src/runtime/expr.js";
import type { Condition } from "../../src/runtime/manifest.js";
import type { SelfTest, TestedRunner } from "../../src/runtime/self_test.js";
import { selfTest } from "../../src/runtime/self_test.js";
import type { Verdict } from "../../src/runtime/trials.js";
import { chooseRow } from "../../src/runtime/variants.js";

type Lists = Readonly<Record<string, readonly (readonly [name: string, when: Condition])[]>>;
type Wrong = Readonly<Record<string, number | ((dims: Dims) => number)>>;

const LENGTH = 20;
const PROMPT = Array.from({ length: LENGTH }, (_, index) => index * 3);
const VOCAB = 50;

/** The logits of a prompt's row: they depend on all tokens up to it that the pages hold. */
function rightLogits(tokens: readonly number[]): Float32Array {
  const logits = new Float32Array(VOCAB);
  tokens.forEach((token, index) => {
    logits[(token * 7 + index) % VOCAB] = 4 + (token % 5) + index / 10;
  });
  return logits;
}

class FakeRunner implements TestedRunner {
  readonly numPages = [4];
  forwards = 0;
  readonly #slots = new Int32Array(4 * 16);
  choices: Choices = NO_CHOICES;

  constructor(
    private readonly lists: Lists,
    private readonly wrong: Wrong,
  ) {}

  choose(choices: Choices): void {
    this.choices = choices;
  }

  running(dims: Dims): readonly string[] {
    return Object.entries(this.lists).map(([list, rows]) => {
      const entries = rows.map(([name, when]) => ({ kernels: [name], when }));
      return variantName(chooseRow(arrange(entries, list, this.choices), dims));
    });
  }

  forwardLogits(batch: Batch): Promise<Float32Array> {
    this.forwards++;
    const dims = dimsOf(batch, { P: 4 }, false);
    if (!this.running(dims).includes("forgetful"))
      batch.slots.forEach((slot, index) => (this.#slots[slot] = batch.token_ids[index] ?? 0));
    const length = (batch.positions.at(-1) ?? 0) + 1;
    const tokens = Array.from(
      { length },
      (_, position) => this.#slots[(batch.page_ids[position >> 4] ?? 0) * 16 + (position & 15)] ?? 0,
    );
    const logits = rightLogits(tokens);
    for (const name of this.running(dims)) {
      const fault = name.startsWith("argmax") ? 0 : (this.wrong[name] ?? 0);
      logits[3] = (logits[3] ?? 0) + (typeof fault === "number" ? fault : fault(dims));
    }
    return Promise.resolve(logits);
  }

  async sample(batch: Batch): Promise<readonly [Float32Array, number]> {
    const logits = await this.forwardLogits(batch);
    const wrong = this.running(dimsOf(batch, { P: 4 }, false)).some(
      (name) => name.startsWith("argmax") && name in this.wrong,
    );
    return [logits, wrong ? -1 : logits.indexOf(Math.max(...logits))];
  }
}

function testOf(lists: Lists, changes: Partial<SelfTest> = {}): SelfTest {
  return {
    prompt_ids: PROMPT,
    rows: PROMPT.map((_, row) => {
      const logits = rightLogits(PROMPT.slice(0, row + 1));
      const token_ids = Array.from(logits.keys());
      const logsumexp = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
      return { row, token_ids, logits: Array.from(logits), logsumexp };
    }),
    tolerances: {},
    tolerance: 1e-3,
    pageSize: 16,
    variants: new Map(Object.entries(lists).map(([list, rows]) => [list, rows.map(([name]) => name)])),
    front: {},
    watch: { isOver: () => false, onTrial: () => undefined },
    signal: new AbortController().signal,
    ...changes,
  };
}

async function run(lists: Lists, wrong: Wrong): Promise<Verdict & { runner: FakeRunner }> {
  const runner = new FakeRunner(lists, wrong);
  return { ...(await selfTest(runner, testOf(lists))), runner };
}

const FEW: Condition = ["<=", "S", 4];
const DECODE: Condition = ["==", "S", "B"];
const LISTS: Lists = {
  embed: [["embed", null]],
  qkv: [
    ["qkv few", FEW],
    ["qkv few 2", FEW],
    ["qkv tile", null],
    ["qkv tile 2", null],
  ],
  attention: [
    ["fused", DECODE],
    ["split", DECODE],
    ["tile", ["==", "B", 1]],
    ["plain", null],
  ],
  head: [
    ["head few", FEW],
    ["head", null],
  ],
  argmax: [
    ["argmax", null],
    ["argmax 2", null],
  ],
};
const NAMES = Object.values(LISTS).flatMap((rows) => (rows.length > 1 ? rows.map(([name]) => name) : []));

test("a correct device passes in one full trial and one short trial for each round", async () => {
  const { runner, ...verdict } = await run(LISTS, {});
  expect(verdict).toMatchObject({ passed: true, off: new Set() });
  expect(verdict.deviation).toBeLessThan(1e-6);
  expect(runner.forwards).toBe(1 + LENGTH + 4 * 5);
  expect(runner.choices).toEqual(NO_CHOICES);
});

test("rounding within the tolerance passes, and is reported", async () => {
  const { passed, deviation } = await run(LISTS, { split: 0.005 });
  expect(passed).toBe(true);
  expect(deviation).toBeGreaterThan(1e-4);
});

test.each(NAMES)("a wrong '%s' is switched off and nothing else", async (name) => {
  const { runner, passed, off } = await run(LISTS, { [name]: 1 });
  expect([passed, off]).toEqual([true, new Set([name])]);
  for (const S of [1, 20]) expect(runner.running({ S, B: 1, R: 1, T: 20 })).not.toContain(name);
});

test("a variant that is wrong only for single tokens, or only for many, is found", async () => {
  expect((await run(LISTS, { "qkv tile 2": ({ S = 0 }) => (S === 1 ? 1 : 0) })).off).toEqual(new Set(["qkv tile 2"]));
  expect((await run(LISTS, { "qkv few": ({ S = 0 }) => (S > 1 ? 1 : 0) })).off).toEqual(new Set(["qkv few"]));
});

test("all wrong variants are found, also two in one list, and if the first of every list is wrong", async () => {
  const sets = [
    ["qkv few", "qkv tile"],
    ["qkv few", "fused", "head few"],
    ["tile", "plain", "qkv tile 2", "head"],
  ];
  sets.push(["qkv few", "qkv few 2", "qkv tile", "fused", "split", "head few"]);
  for (const wrong of sets) {
    const { passed, off } = await run(LISTS, Object.fromEntries(wrong.map((name) => [name, 1])));
    // Without "plain", only "tile" and the like can compute prefills.
    expect([wrong, passed, off]).toEqual([
      wrong,
      !wrong.includes("plain"),
      new Set(wrong.includes("plain") ? [] : wrong),
    ]);
  }
});

test("infinite and missing logits are wrong", async () => {
  expect((await run(LISTS, { split: NaN })).off).toEqual(new Set(["split"]));
  expect((await run(LISTS, { split: -Infinity })).off).toEqual(new Set(["split"]));
});

test("if the only row of a list is wrong, nothing passes, and the deviation is its error", async () => {
  const verdict = await run(LISTS, { embed: 3 });
  expect(verdict).toMatchObject({ passed: false, off: new Set() });
  expect(verdict.deviation).toBeGreaterThan(0.1);
  expect((await run(LISTS, { embed: NaN })).deviation).toBe(Infinity);
});

test("a variant that does not write keys and values is found, whatever earlier trials wrote to the pages", async () => {
  const lists: Lists = {
    append: [
      ["append", null],
      ["append 2", null],
      ["forgetful", null],
      ["append 3", null],
    ],
  };
  expect((await run(lists, {})).off).toEqual(new Set(["forgetful"]));
});

test("variants that a record puts in front are part of the first trial, and a wrong one is switched off", async () => {
  const front = { qkv: [{ when: null, variant: "qkv tile 2" }] };
  const healthy = new FakeRunner(LISTS, {});
  expect((await selfTest(healthy, testOf(LISTS, { front }))).passed).toBe(true);
  expect(healthy.choices).toEqual({ off: new Set(), front });
  expect(healthy.running({ S: 1, B: 1 })).toContain("qkv tile 2");
  const broken = new FakeRunner(LISTS, { "qkv tile 2": 1 });
  expect(await selfTest(broken, testOf(LISTS, { front }))).toMatchObject({
    passed: true,
    off: new Set(["qkv tile 2"]),
  });
  expect(broken.running({ S: 1, B: 1 })).toContain("qkv few");
});

/** A watch whose time is over after this many trials, and which counts them. */
function watchOf(limit: number): SelfTest["watch"] & { trials: number } {
  return {
    trials: 0,
    isOver(): boolean {
      return this.trials >= limit;
    },
    onTrial(): void {
      this.trials++;
    },
  };
}

test("a search ends when its time is over, and before that after the plain variants with one other each", async () => {
  const lists: Lists = {
    embed: [["embed", null]],
    ...Object.fromEntries(
      Array.from({ length: 20 }, (_, list) => [
        `list ${list}`,
        Array.from({ length: 12 }, (_unused, row) => [`row ${list} ${row}`, null] as const),
      ]),
    ),
  };
  const runner = new FakeRunner(lists, { embed: 1 });
  for (const limit of [0, 1, 50]) {
    const watch = watchOf(limit);
    const verdict = await selfTest(runner, testOf(lists, { watch }));
    expect(verdict).toMatchObject({ passed: false, off: new Set(), isCut: true });
    // The default variants and the plain ones are always tried.
    expect(watch.trials).toBe(Math.max(limit, 2));
  }
  const watch = watchOf(Infinity);
  expect(await selfTest(runner, testOf(lists, { watch }))).toMatchObject({ passed: false, isCut: false });
  expect(watch.trials).toBe(1 + 12 + 20 * 11);
});

test("a device that computes correctly passes although no time is left for searches, but not with an untried half", async () => {
  const watch = watchOf(0);
  const healthy = new FakeRunner(LISTS, {});
  expect(await selfTest(healthy, testOf(LISTS, { watch }))).toMatchObject({ passed: true, isCut: false });
  const broken = new FakeRunner(LISTS, { split: 1 });
  expect(await selfTest(broken, testOf(LISTS, { watch }))).toMatchObject({ passed: false, isCut: true });
});

test("an aborted test ends with the signal's reason", async () => {
  const test = testOf(LISTS, { signal: AbortSignal.abort(new Error("closed")) });
  await expect(selfTest(new FakeRunner(LISTS, {}), test)).rejects.toThrow("closed");
});
