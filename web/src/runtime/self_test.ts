// The self-test of a bundle that generates text: runs the bundle's prompt on this device, and compares the logits with
// the reference's.

import type { Batch } from "./batch.js";
import type { Choices } from "./choices.js";
import { largestOf, logSumExp } from "./log_sum_exp.js";
import type { SelfTestEntry, SelfTestRow } from "./manifest.js";
import type { PagesByGroup } from "./page_groups.js";
import { sequenceBatch } from "./sequence_batch.js";
import type { Measurable, TrialKind, TrialOptions, Verdict } from "./trials.js";
import { tryVariants } from "./trials.js";

/** The interface of a runner for the test. */
export interface TestedRunner {
  /** By group, the number of pages. */
  readonly numPages: readonly number[];
  /** The logits of the batch's one sampled row. */
  forwardLogits(batch: Batch): Promise<Float32Array>;
  /**
   * The same logits, and the most likely token there as the device computes it. A batch runs only once: a second run
   * would begin with the states that the first has left.
   */
  sample(batch: Batch): Promise<readonly [logits: Float32Array, token: number]>;
  choose(choices: Choices): void;
}

export interface SelfTest extends SelfTestEntry, TrialOptions {
  readonly pageSize: number;
  /** Measures the error of a tower's features, in units of the largest that is allowed. */
  readonly tower?: (() => Promise<number>) | undefined;
  readonly signal: AbortSignal;
}

/** The number of tokens that a short trial computes one by one at its end. */
const SHORT_TAIL = 4;

/** Throws what the runner throws, and the signal's reason. */
export async function selfTest(runner: TestedRunner, test: SelfTest): Promise<Verdict> {
  return tryVariants(new PromptTest(runner, test), test);
}

/** The token counts of the forwards that compute ``length`` tokens: all at once, or all but the last ones at once. */
export function chunksOf(kind: TrialKind, length: number): readonly (readonly number[])[] {
  const tail = Math.min(SHORT_TAIL, length - 1);
  return kind === "full" ? [[length], ones(length)] : [[length - tail, ...ones(tail)]];
}

/** Runs the prompt and compares the results with the reference. */
class PromptTest implements Measurable {
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

  choose(choices: Choices): void {
    this.runner.choose(choices);
  }

  async deviation(kind: TrialKind): Promise<number> {
    let deviation = 0;
    for (const chunks of chunksOf(kind, this.test.prompt_ids.length)) {
      // A trial that has failed does not need the second run.
      if (deviation <= this.test.tolerance) deviation = Math.max(deviation, await this.#deviation(chunks));
    }
    const { tower, tolerance } = this.test;
    if (tower !== undefined && deviation <= tolerance) deviation = Math.max(deviation, (await tower()) * tolerance);
    return deviation;
  }

  async #deviation(chunks: readonly number[]): Promise<number> {
    const { prompt_ids, pageSize, signal, tolerance } = this.test;
    const pages = pagesOfTrial(this.#count++, Math.ceil(prompt_ids.length / pageSize), this.runner.numPages);
    let worst = 0;
    let start = 0;
    for (const chunk of chunks) {
      signal.throwIfAborted();
      const tokens = prompt_ids.slice(start, start + chunk);
      start += chunk;
      const touched = pages.map((all) => all.slice(0, Math.ceil(start / pageSize)));
      const batch = sequenceBatch(tokens, start - chunk, touched, pageSize, true);
      const isLast = start === prompt_ids.length;
      const [logits, token] = isLast
        ? await this.runner.sample(batch)
        : [await this.runner.forwardLogits(batch), undefined];
      const expected = this.#rows.get(start - 1);
      if (expected !== undefined) worst = Math.max(worst, rowDeviation(logits, expected) / this.#scale);
      if (worst > tolerance) break;
      if (token !== undefined) worst = Math.max(worst, choiceDeviation(logits, token) / this.#scale);
    }
    return worst;
  }
}

/**
 * For trial number ``first``, pages that hold other tokens, or the same tokens at other positions, so that missing writes
 * of keys and values are detected.
 */
export function pagesOfTrial(first: number, length: number, numPages: readonly number[]): PagesByGroup {
  return numPages.map((count) => Array.from({ length }, (_, index) => (first + count - (index % count)) % count));
}

/** The largest error of a row of logits, in logits. */
export function rowDeviation(logits: Float32Array, { token_ids, logits: expected, logsumexp }: SelfTestRow): number {
  const differences = token_ids.map((token, index) => Math.abs((logits[token] ?? NaN) - (expected[index] ?? NaN)));
  const worst = Math.max(...differences, Math.abs(logSumExp(logits) - logsumexp));
  return Number.isNaN(worst) ? Infinity : worst;
}

/** The difference between the largest logit and the logit of the chosen token. */
function choiceDeviation(logits: Float32Array, chosen: number): number {
  const below = largestOf(logits) - (logits[chosen] ?? NaN);
  return Number.isNaN(below) ? Infinity : below;
}

function ones(count: number): readonly number[] {
  return new Array<number>(count).fill(1);
}
