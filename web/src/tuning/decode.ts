// Measures what a step of one sequence costs by its sampled rows, from which the number of drafts follows that pay. The
// steps are those of the engine, with all kernels and with the way of the tokens to the host.

import type { DecodeTimes } from "../runtime/manifest.js";
import type { Runner } from "../runtime/runner.js";
import type { TuneOptions } from "./batches.js";
import { CLOCK_MS, allSampled, lastTokens } from "./batches.js";

/** The interface of a runner for these measurements. */
export type DraftingRunner = Pick<Runner, "limits" | "stepsInFlight" | "submit">;

/** One token, and 2, 4 and 7 drafts. */
const ROWS = [1, 3, 5, 8] as const;
const CONTEXT = 256;
/** The steps that are submitted before the first of them is read. */
const AHEAD = 5;
const ROUNDS = 3;
/** The difference of the tokens of two rows: in a mixture, different tokens have different experts. */
const STRIDE = 7919;

/**
 * The least time of some rounds, because other work of the device or the host only adds to it. Throws what the runner
 * throws, and the signal's reason.
 */
export async function timeDecode(
  runner: DraftingRunner,
  { pages, idle, signal }: Pick<TuneOptions, "pages" | "idle" | "signal">,
): Promise<DecodeTimes> {
  const { context, groups, pageSize, rows: most = 1, vocabSize } = runner.limits;
  const time = async (rows: number, count: number): Promise<number> => {
    const batch = {
      ...allSampled(lastTokens(rows, Math.min(CONTEXT, context), pageSize, groups, pages), rows),
      token_ids: Array.from({ length: rows }, (_, row) => (row * STRIDE) % vocabSize),
    };
    await idle();
    signal.throwIfAborted();
    const start = performance.now();
    // What is in the pages means nothing.
    await Promise.all(Array.from({ length: count }, () => runner.submit(batch, { notNumbers: true })));
    return Math.max(performance.now() - start, CLOCK_MS);
  };
  const steps = ROWS.filter((rows) => rows <= most).map((rows) => ({ rows, ms: Infinity }));
  const count = Math.min(AHEAD, runner.stepsInFlight);
  let together = Infinity;
  for (let round = 0; round < ROUNDS; round++) {
    for (const step of steps) step.ms = Math.min(step.ms, await time(step.rows, 1));
    together = Math.min(together, await time(1, count));
  }
  const alone = steps[0]?.ms ?? CLOCK_MS;
  const ahead = count === 1 ? alone : Math.min((together - alone) / (count - 1), alone);
  return { ahead_ms: Math.max(ahead, CLOCK_MS), steps };
}
