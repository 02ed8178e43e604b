// Drafts that are made only while they pay: how many, and what they gain and cost on texts that repeat and on others.

import { readFileSync } from "node:fs";

import { describe, expect, test, vi } from "vitest";

import { AdaptiveDrafter, rowsThatPay } from "../../src/drafts/adaptive_drafter.js";
import { Drafting } from "../../src/drafts/drafting.js";
import { NgramDrafter } from "../../src/drafts/ngram_drafter.js";
import { resolveSampling } from "../../src/engine/resolved_sampling.js";
import { PLAIN, Sequence } from "../../src/engine/sequence.js";
import type { Drafter } from "../../src/engine/speculation.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import type { Batch } from "../../src/runtime/batch.js";
import type { DecodeTimes } from "../../src/runtime/manifest.js";
import type { StepResult } from "../../src/runtime/results.js";
import { timeDecode } from "../../src/tuning/decode.js";
import { answer, onePool } from "../engine/engine_set_up.js";
import { STOP, VOCAB } from "../engine/fake_model.js";
import { FakeRunner } from "../engine/fake_runner.js";

/** A device whose steps of 1, 3, 5 and 8 rows take these times, and steps that are submitted ahead 1 ms. */
function device(...ms: readonly [number, number, number, number]): DecodeTimes {
  return { ahead_ms: 1, steps: [1, 3, 5, 8].map((rows, index) => ({ rows, ms: ms[index] ?? NaN })) };
}

const DEVICES = {
  "bound by memory": device(1.05, 1.1, 1.15, 1.2),
  "of usual GPUs": device(1.1, 1.4, 1.6, 1.8),
  "with tiles from four rows on": device(1, 1.9, 2.1, 2.1),
  "bound by arithmetic": device(1, 2.4, 3.8, 5.9),
};

describe("the number of drafts", () => {
  const times = device(1.1, 1.3, 1.5, 1.8);

  test.each([
    ["of guesses that are surely right, all are checked", [1, 1, 1, 1, 1, 1, 1], 1, 7],
    ["of guesses that are surely wrong, none is checked", [0, 0, 0], 1, 0],
    ["without guesses there is none", [], 1, 0],
    ["a first guess must pay for the wait for the tokens, too", [0.2], 1, 0],
    ["a likelier one does", [0.3], 1, 1],
    ["those that are too unlikely are left out", [0.9, 0.8, 0.05, 0.05], 1, 2],
    ["several can pay together where one does not", [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2], 1, 7],
    ["beside the rows of other sequences, one must be likelier", [0.4], 4, 0],
  ])("%s", (_, chances, running, count) => {
    expect(rowsThatPay(times, running, chances)).toBe(count);
  });

  test("beyond the sizes that were measured, each row costs what the last ones did", () => {
    expect(rowsThatPay(times, 7, [1, 1, 1])).toBe(3);
    expect(rowsThatPay(device(1, 1, 1, 8), 8, [1, 1, 1])).toBe(0);
  });

  test("nothing is known without times of two sizes", () => {
    expect(rowsThatPay({ ahead_ms: 1, steps: [{ rows: 1, ms: 1 }] }, 1, [1, 1, 1])).toBe(0);
  });
});

const wordsOf = (file: string): readonly string[] =>
  readFileSync(new URL(`../../${file}`, import.meta.url), "utf8").match(/ ?[A-Za-z]{1,6}|\d|\s+|[^\sA-Za-z0-9]/g) ?? [];

/** Texts as token ids: a prompt and the answer to it. */
const TEXTS = ((): Readonly<Record<string, readonly [readonly number[], readonly number[]]>> => {
  const known = new Map<string, number>();
  const ids = (words: readonly string[]): readonly number[] =>
    words.map((word) => known.get(word) ?? (known.set(word, known.size), known.size - 1));
  const code = wordsOf("src/engine/scheduler.ts").slice(0, 1500);
  const prose = wordsOf("README.md");
  let random = 1;
  const noise = (size: number): readonly number[] =>
    Array.from({ length: size }, () => (random = (random * 48271) % 2147483647) % 400);
  const quoted = [40, 260, 520, 900].flatMap((start) => [
    ...code.slice(start, start + 60),
    ...prose.slice(start, start + 40),
  ]);
  return {
    "an edit of code": [ids(code), ids(code.map((word) => (/^ ?step$/.test(word) ? `${word}s` : word)))],
    "an answer with quotations": [ids(code), ids(quoted)],
    prose: [ids(prose.slice(0, 300)), ids(prose.slice(300, 1500))],
    noise: [noise(500), noise(1000)],
  };
})();

/** The tokens of an answer for each pass, and its time, 1 for each token without drafts. */
async function measured(
  drafter: Drafter,
  times: DecodeTimes,
  [prompt, answerIds]: readonly [readonly number[], readonly number[]],
): Promise<{ readonly perPass: number; readonly time: number }> {
  const sequence = new Sequence(0, prompt, PLAIN);
  const sampling = resolveSampling({}, VOCAB);
  const costOf = (rows: number): number => {
    const upper = times.steps.find((step) => step.rows >= rows) ?? { rows: NaN, ms: NaN };
    const lower = times.steps.findLast((step) => step.rows < rows) ?? upper;
    return rows === upper.rows
      ? upper.ms
      : lower.ms + ((rows - lower.rows) / (upper.rows - lower.rows)) * (upper.ms - lower.ms);
  };
  let [passes, ms, next] = [0, 0, 0];
  while (next < answerIds.length) {
    const guesses = [{ sequence, sampling, most: Math.min(7, answerIds.length - next - 1) }];
    // The engine reads a step before the next one only if drafts pay.
    const waits = drafter.pays?.(guesses, 1) !== false;
    await drafter.draft(guesses, 1);
    const { drafts } = sequence;
    const right = drafts.findIndex((draft, index) => draft !== answerIds[next + index]);
    expect(waits || drafts.length === 0).toBe(true);
    ms += waits ? costOf(1 + drafts.length) : times.ahead_ms;
    passes++;
    for (let count = right < 0 ? drafts.length : right; count >= 0; count--) sequence.append(answerIds[next++] ?? -1);
  }
  return { perPass: answerIds.length / passes, time: ms / answerIds.length };
}

describe.each(Object.entries(DEVICES))("on a device %s", (name, times) => {
  test.each(["prose", "noise"])("%s takes hardly longer than without drafts", async (text) => {
    const { time } = await measured(new AdaptiveDrafter(times), times, TEXTS[text] ?? [[], []]);
    expect(time).toBeLessThan(1.02);
  });

  test.each(["an edit of code", "an answer with quotations"])("%s takes less time", async (text) => {
    const { time } = await measured(new AdaptiveDrafter(times), times, TEXTS[text] ?? [[], []]);
    const fixed = await measured(new NgramDrafter(), times, TEXTS[text] ?? [[], []]);
    expect(time).toBeLessThan(Math.min(0.95, 1.05 * fixed.time));
    if (name === "of usual GPUs") expect(time).toBeLessThan(0.6);
  });
});

test("a text that repeats gives several tokens a pass, one that does not hardly more than one", async () => {
  const times = DEVICES["of usual GPUs"];
  const perPass = async (text: string): Promise<number> =>
    (await measured(new AdaptiveDrafter(times), times, TEXTS[text] ?? [[], []])).perPass;
  expect(await perPass("an edit of code")).toBeGreaterThan(3);
  expect(await perPass("an answer with quotations")).toBeGreaterThan(1.8);
  expect(await perPass("noise")).toBeLessThan(1.1);
});

const LIMITS = { tokens: 24, sequences: 4, rows: 11, groups: onePool(64), pageSize: 4, context: 250, vocabSize: 1000 };

/** A model that recites a text, whose steps take some time: the first 40 tokens, others, the first 40 again, and others. */
const RECITED = Array.from({ length: 200 }, (_, at) => (at >= 80 && at < 120 ? at - 79 : at + 1));

class Reciting extends FakeRunner {
  override async submit(batch: Batch): Promise<StepResult> {
    this.batches.push(batch);
    await new Promise((resolve) => setTimeout(resolve));
    const tokenIds = Int32Array.from(batch.sample_rows, (row) => RECITED[(batch.positions[row] ?? 0) + 1] ?? 0);
    return { tokenIds, logprobs: null, alternatives: null };
  }
}

async function batchesWith(times: DecodeTimes): Promise<readonly Batch[]> {
  const runner = new Reciting(LIMITS);
  const drafting = new Drafting(new AdaptiveDrafter(times));
  const engine = new TokenEngine(runner, { vocabSize: 1000, endTokenIds: [STOP] }, null, undefined, () => drafting);
  const { ids, completion } = await answer(engine, { promptIds: RECITED.slice(0, 50), maxTokens: 150 });
  expect(ids).toEqual(RECITED.slice(50));
  expect(completion.passes).toBe(runner.batches.filter(({ sample_rows }) => sample_rows.length > 0).length);
  return runner.batches;
}

/** Whether a batch continues from a token that the host does not know yet. */
const isAhead = ({ token_ids }: Batch): boolean => token_ids.some((id) => id < 0);

test("while drafts do not pay, no step has a row more, and steps are submitted ahead", async () => {
  const batches = await batchesWith(device(1, 8, 8, 8));
  expect(batches.every(({ sample_rows }) => sample_rows.length <= 1)).toBe(true);
  expect(batches.filter(isAhead).length).toBeGreaterThan(140);
});

test("while they pay, each step is read before the next one; before and after that, steps are submitted ahead", async () => {
  const batches = await batchesWith(device(1, 1, 1, 1));
  const drafted = batches.filter(({ sample_rows }) => sample_rows.length > 1);
  expect(drafted.length).toBeGreaterThan(4);
  expect(drafted.some(isAhead)).toBe(false);
  const [first, last] = [drafted[0], drafted.at(-1)].map((batch) => batch?.positions[0] ?? 0);
  // The repetition shows after a pair of tokens, and steps were submitted ahead then.
  expect(first).toBeGreaterThan(81);
  expect(first).toBeLessThan(88);
  expect(last).toBeLessThan(120);
  const ahead = batches.filter(isAhead).map(({ positions }) => positions[0] ?? 0);
  expect(ahead.filter((position) => position < 80).length).toBeGreaterThan(25);
  expect(ahead.filter((position) => position > 122).length).toBeGreaterThan(70);
  expect(batches.length).toBeLessThan(200 - 50 - 25);
});

describe("times of steps", () => {
  /** Milliseconds on the device by rows, and on the way to the host. */
  function timed(stepMs: (rows: number) => number, wayMs: number, stepsInFlight = 8) {
    let [now, free] = [0, 0];
    vi.spyOn(performance, "now").mockImplementation(() => now);
    const batches: Batch[] = [];
    const submit = async (batch: Batch): Promise<never> => {
      batches.push(batch);
      const end = (free = Math.max(now, free) + stepMs(batch.sample_rows.length));
      await Promise.resolve();
      now = Math.max(now, end + wayMs);
      return undefined as never;
    };
    const limits = {
      ...LIMITS,
      context: 512,
      pageSize: 16,
      vocabSize: 1000,
      groups: [{ pages: 32, window: Infinity }],
    };
    return { runner: { limits, stepsInFlight, submit }, batches };
  }
  const options = { pages: [31], idle: () => Promise.resolve(), signal: new AbortController().signal };

  test("are those of steps with all rows sampled, of different tokens, in pages that no sequence uses", async () => {
    const { runner, batches } = timed((rows) => 10 + rows, 3);
    expect(await timeDecode(runner, options)).toEqual({
      ahead_ms: 11,
      steps: [1, 3, 5, 8].map((rows) => ({ rows, ms: 13 + rows })),
    });
    for (const { token_ids, sample_rows, slots, sample_slots } of batches) {
      expect(sample_rows).toEqual(token_ids.map((_, row) => row));
      expect(new Set(token_ids).size).toBe(token_ids.length);
      expect(slots.every((slot) => Math.floor(slot / 16) === 31)).toBe(true);
      expect(sample_slots).toEqual(token_ids.flatMap(() => [-1, 0]));
    }
  });

  test("of a runner that waits for each step are the same ahead", async () => {
    const { runner } = timed((rows) => rows, 4, 1);
    expect((await timeDecode(runner, options)).ahead_ms).toBe(5);
  });

  test("of a device that is faster than the host's clock are those of the clock", async () => {
    const { runner } = timed(() => 0, 0);
    const { ahead_ms, steps } = await timeDecode(runner, options);
    expect([ahead_ms, ...steps.map(({ ms }) => ms)]).toEqual([0.1, 0.1, 0.1, 0.1, 0.1]);
  });

  test("end with the tuning", async () => {
    const { runner } = timed(() => 1, 1);
    await expect(timeDecode(runner, { ...options, signal: AbortSignal.abort(new Error("stop")) })).rejects.toThrow(
      "stop",
    );
  });
});
