// The self-test: runs the bundle's prompt on this device, compares the results with the reference, and finds the
// variants that compute wrongly.
//
// Every variant takes part in a trial of the prompt, many of them at a time: first the variants that the device runs by
// default, then round by round the next row of every list. If a round is wrong, it is halved until the wrong variant is
// found.

import type { Batch } from "./batch.js";
import type { Choices, Front } from "./choices.js";
import type { SelfTestEntry, SelfTestRow } from "./manifest.js";
import type { PagesByGroup } from "./page_groups.js";
import { sequenceBatch } from "./sequence_batch.js";

/** The interface of a runner for the test. */
export interface TestedRunner {
  /** By group, the number of pages. */
  readonly numPages: readonly number[];
  /** The logits of the batch's one sampled row. */
  forwardLogits(batch: Batch): Promise<Float32Array>;
  /** The most likely token there, as the device computes it. */
  mostLikely(batch: Batch): Promise<number>;
  choose(choices: Choices): void;
}

export interface SelfTest extends SelfTestEntry {
  readonly pageSize: number;
  /** The largest allowed error of a logit, relative to the largest logit in the test. */
  readonly tolerance: number;
  /** By list, the names of the variants that can run, first choice first. */
  readonly variants: ReadonlyMap<string, readonly string[]>;
  /** The rows that are tried first on a device that has passed. */
  readonly front: Front;
  readonly signal: AbortSignal;
}

export interface Verdict {
  /** Whether the runner now computes correctly. */
  readonly passed: boolean;
  /** Variants that compute wrongly; the runner does not use them. */
  readonly off: ReadonlySet<string>;
  /**
   * The largest error of the trials that passed; if none passed, the smallest error. Infinite if logits are not
   * numbers.
   */
  readonly deviation: number;
}

type Chosen = readonly [list: string, variant: string];

/** The number of tokens that a short trial computes one by one at its end. */
const SHORT_TAIL = 4;

/** Throws what the runner throws, and the signal's reason. */
export async function selfTest(runner: TestedRunner, test: SelfTest): Promise<Verdict> {
  const trials = new Trials(runner, test);
  let background: readonly Chosen[] = [];
  if (!(await trials.passes("full", background))) {
    const passing = await trials.firstThatPasses(backgrounds(test.variants));
    if (passing === null) return { passed: false, off: new Set(), deviation: trials.least };
    background = passing;
  }
  const off = new Set<string>();
  const rounds = Math.max(
    0,
    ...[...test.variants.values()].filter((names) => names.length > 1).map((names) => names.length),
  );
  for (let round = 0; round < rounds; round++) {
    for (const name of await trials.wrong(
      background,
      rowsOf(test.variants, (names) => names[round]),
    ))
      off.add(name);
  }
  const passed = off.size === 0 || (await trials.passes("full", [], off));
  runner.choose({ off, front: test.front });
  return { passed, off, deviation: passed ? trials.largest : trials.least };
}

/**
 * Candidates if the first choice is wrong: the last row of every list, which is the plainest, then the rows before it;
 * then the same with another row in one list.
 */
function* backgrounds(variants: ReadonlyMap<string, readonly string[]>): Generator<readonly Chosen[]> {
  const most = Math.max(...[...variants.values()].map((names) => names.length));
  const rounds = Array.from({ length: most }, (_, back) =>
    rowsOf(variants, (names) => names[Math.max(names.length - 1 - back, 0)]),
  );
  yield* rounds;
  for (const round of rounds) {
    for (const [list, current] of round) {
      for (const name of variants.get(list) ?? [])
        if (name !== current) yield round.map((chosen) => (chosen[0] === list ? [list, name] : chosen));
    }
  }
}

function rowsOf(
  variants: ReadonlyMap<string, readonly string[]>,
  pick: (names: readonly string[]) => string | undefined,
): readonly Chosen[] {
  return [...variants].flatMap(([list, names]) => {
    const name = pick(names);
    return name === undefined ? [] : [[list, name] as const];
  });
}

/** The trials of one test. Each runs the prompt by some variants and compares the results with the reference. */
class Trials {
  largest = 0;
  least = Infinity;
  #count = 0;
  readonly #rows: ReadonlyMap<number, SelfTestRow>;
  readonly #scale: number;

  constructor(
    private readonly runner: TestedRunner,
    private readonly test: SelfTest,
  ) {
    this.#rows = new Map(test.rows.map((row) => [row.row, row]));
    this.#scale = Math.max(...test.rows.flatMap(({ logits }) => logits.map(Math.abs)));
  }

  async firstThatPasses(candidates: Iterable<readonly Chosen[]>): Promise<readonly Chosen[] | null> {
    for (const candidate of candidates) if (await this.passes("short", candidate)) return candidate;
    return null;
  }

  /**
   * The names of the variants in ``chosen`` that compute wrongly. ``background`` contains correct variants for the
   * other steps.
   */
  async wrong(background: readonly Chosen[], chosen: readonly Chosen[]): Promise<readonly string[]> {
    if (chosen.length === 0 || (await this.passes("short", [...chosen, ...background]))) return [];
    if (chosen.length === 1) return chosen.map(([, name]) => name);
    const half = Math.ceil(chosen.length / 2);
    return [
      ...(await this.wrong(background, chosen.slice(0, half))),
      ...(await this.wrong(background, chosen.slice(half))),
    ];
  }

  /**
   * Run the prompt with these variants first, and the others in the order of their lists. A short trial computes all
   * but the last tokens at once; a full trial computes all at once, and then all one by one.
   */
  async passes(
    kind: "short" | "full",
    chosen: readonly Chosen[],
    off: ReadonlySet<string> = new Set(),
  ): Promise<boolean> {
    const front: Record<string, Front[string]> = { ...this.test.front };
    for (const [list, variant] of [...chosen].reverse())
      front[list] = [{ when: null, variant }, ...(front[list] ?? [])];
    this.runner.choose({ off, front });
    const length = this.test.prompt_ids.length;
    const tail = Math.min(SHORT_TAIL, length - 1);
    const runs = kind === "full" ? [[length], ones(length)] : [[length - tail, ...ones(tail)]];
    let deviation = 0;
    for (const chunks of runs) {
      // A trial that has failed does not need the second run.
      if (deviation <= this.test.tolerance) deviation = Math.max(deviation, await this.#deviation(chunks));
    }
    this.least = Math.min(this.least, deviation);
    if (deviation > this.test.tolerance) return false;
    this.largest = Math.max(this.largest, deviation);
    return true;
  }

  async #deviation(chunks: readonly number[]): Promise<number> {
    const { prompt_ids, pageSize, signal, tolerance } = this.test;
    const pages = this.#nextPages();
    let worst = 0;
    let start = 0;
    for (const chunk of chunks) {
      signal.throwIfAborted();
      const tokens = prompt_ids.slice(start, start + chunk);
      start += chunk;
      const touched = pages.map((all) => all.slice(0, Math.ceil(start / pageSize)));
      const batch = sequenceBatch(tokens, start - chunk, touched, pageSize, true);
      const logits = await this.runner.forwardLogits(batch);
      const expected = this.#rows.get(start - 1);
      if (expected !== undefined) worst = Math.max(worst, rowDeviation(logits, expected) / this.#scale);
      if (worst > tolerance) break;
      if (start === prompt_ids.length)
        worst = Math.max(worst, choiceDeviation(logits, await this.runner.mostLikely(batch)) / this.#scale);
    }
    return worst;
  }

  /**
   * Pages that hold other tokens, or the same tokens at other positions, so that missing writes of keys and values are
   * detected.
   */
  #nextPages(): PagesByGroup {
    const first = this.#count++;
    const length = Math.ceil(this.test.prompt_ids.length / this.test.pageSize);
    return this.runner.numPages.map((count) =>
      Array.from({ length }, (_, index) => (first + count - (index % count)) % count),
    );
  }
}

/** The largest error of a row of logits, in logits. */
function rowDeviation(logits: Float32Array, { token_ids, logits: expected, logsumexp }: SelfTestRow): number {
  const differences = token_ids.map((token, index) => Math.abs((logits[token] ?? NaN) - (expected[index] ?? NaN)));
  const worst = Math.max(...differences, Math.abs(logSumExp(logits) - logsumexp));
  return Number.isNaN(worst) ? Infinity : worst;
}

/** The difference between the largest logit and the logit of the chosen token. */
function choiceDeviation(logits: Float32Array, chosen: number): number {
  const below = largestOf(logits) - (logits[chosen] ?? NaN);
  return Number.isNaN(below) ? Infinity : below;
}

function logSumExp(logits: Float32Array): number {
  const largest = largestOf(logits);
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - largest);
  return largest + Math.log(sum);
}

function largestOf(logits: Float32Array): number {
  let largest = -Infinity;
  for (const logit of logits) largest = Math.max(largest, logit);
  return largest;
}

function ones(count: number): readonly number[] {
  return new Array<number>(count).fill(1);
}
