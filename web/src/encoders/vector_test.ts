// The vector test of a bundle that makes embeddings or scores: runs the bundle's texts on this device, and compares the
// results with the reference's. compiler/pipeline/vector_test.py makes it. The allowed difference bounds the cosine.

import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import type { Choices } from "../runtime/choices.js";
import type { VectorTestEntry, VectorTestRow } from "../runtime/manifest.js";
import { chunksOf, pagesOfTrial } from "../runtime/self_test.js";
import { addText, sequenceBatch } from "../runtime/sequence_batch.js";
import type { Measurable, TrialKind, TrialOptions, Verdict } from "../runtime/trials.js";
import { tryVariants } from "../runtime/trials.js";

/** The interface of a runner for the test. */
export interface EncodingRunner {
  /** By group, the number of pages; none if a batch contains complete texts. */
  readonly numPages: readonly number[];
  /** The maximum number of tokens and of texts in a batch. */
  readonly tokens: number;
  readonly sequences: number;
  /** The results of a batch, one row after the other. */
  encode(batch: Batch): Promise<Float32Array>;
  choose(choices: Choices): void;
}

export interface VectorTest extends VectorTestEntry, TrialOptions {
  readonly pageSize: number;
  /** Whether each token has a row of results, or each text. */
  readonly perToken: boolean;
  readonly signal: AbortSignal;
}

/** Throws what the runner throws, and the signal's reason. */
export async function vectorTest(runner: EncodingRunner, test: VectorTest): Promise<Verdict> {
  return tryVariants(new TextsTest(runner, test), test);
}

class TextsTest implements Measurable {
  #count = 0;
  readonly #longest: number;

  constructor(
    private readonly runner: EncodingRunner,
    private readonly test: VectorTest,
  ) {
    this.#longest = Math.max(...test.rows.map(({ values }) => Math.hypot(...values)));
  }

  choose(choices: Choices): void {
    this.runner.choose(choices);
  }

  async deviation(kind: TrialKind): Promise<number> {
    const { texts, tolerance } = this.test;
    const runs = this.runner.numPages.length > 0 ? this.#inChunks(kind) : this.#inBatches(kind);
    let deviation = 0;
    for (const run of runs) {
      const rows: Float32Array[] = [];
      for (const { batch, count } of run) {
        this.test.signal.throwIfAborted();
        const results = await this.runner.encode(batch);
        if (count > 0) rows.push(...split(results, count));
      }
      const expected = this.test.perToken ? texts.flat().length : texts.length;
      if (rows.length !== expected) throw new Error(`${rows.length} rows of ${expected}`);
      deviation = Math.max(deviation, ...this.test.rows.map((row) => difference(rows[row.row], row) / this.#longest));
      // A trial that has failed does not need the next run.
      if (deviation > tolerance) break;
    }
    return deviation;
  }

  /** The batches of each run, and how many rows each has: all texts together, then each of them alone. */
  *#inBatches(kind: TrialKind): Generator<readonly Run[]> {
    const { texts, perToken } = this.test;
    const { tokens, sequences } = this.runner;
    const sizes = kind === "full" && texts.length > 1 ? [sequences, 1] : [sequences];
    for (const size of sizes) {
      const batches = [emptyBatch()];
      for (const ids of texts) {
        let batch = batches.at(-1) ?? emptyBatch();
        const count = batch.seq_starts.length - 1;
        if (count > 0 && (count === size || batch.token_ids.length + ids.length > tokens))
          batches.push((batch = emptyBatch()));
        addText(batch, ids);
      }
      yield batches.map((batch) => ({ batch, count: perToken ? batch.token_ids.length : batch.seq_starts.length - 1 }));
    }
  }

  /** Each text in chunks, whose keys and values are in pages. */
  *#inChunks(kind: TrialKind): Generator<readonly Run[]> {
    const { texts, pageSize } = this.test;
    const longest = Math.max(...texts.map((ids) => ids.length));
    for (let run = 0; run < chunksOf(kind, longest).length; run++) {
      yield texts.flatMap((ids) => {
        const pages = pagesOfTrial(this.#count++, Math.ceil(ids.length / pageSize), this.runner.numPages);
        let start = 0;
        return (chunksOf(kind, ids.length)[run] ?? [])
          .filter((chunk) => chunk > 0)
          .map((chunk) => {
            const tokens = ids.slice(start, start + chunk);
            start += chunk;
            const touched = pages.map((all) => all.slice(0, Math.ceil(start / pageSize)));
            const isLast = start === ids.length;
            const batch = sequenceBatch(tokens, start - chunk, touched, pageSize, isLast);
            return { batch, count: isLast ? 1 : 0 };
          });
      });
    }
  }
}

interface Run {
  readonly batch: Batch;
  /** The number of rows of results. */
  readonly count: number;
}

function split(rows: Float32Array, count: number): readonly Float32Array[] {
  const size = rows.length / count;
  return Array.from({ length: count }, (_, index) => rows.subarray(index * size, (index + 1) * size));
}

/** The length of the difference from the expected values. */
function difference(found: Float32Array | undefined, { elements, values }: VectorTestRow): number {
  const length = Math.hypot(...elements.map((element, index) => (found?.[element] ?? NaN) - (values[index] ?? NaN)));
  return Number.isNaN(length) ? Infinity : length;
}
