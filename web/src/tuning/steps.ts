// The chunk: measures how many tokens of a prompt a step should compute on this device.
//
// Weights are read once for all tokens of a step, so longer ones take less time per token, until the device computes at
// its full speed. But a page draws nothing while a step runs, and other answers wait for it.

import { CHUNKS } from "../runtime/memory_plan.js";
import type { Runner } from "../runtime/runner.js";
import type { TuneOptions } from "./batches.js";
import { lastTokens } from "./batches.js";

/** The interface of a runner whose steps are measured. */
export type SteppedRunner = Pick<Runner, "limits" | "stepsInFlight" | "submit" | "resize" | "chunk">;

/** The longest that a step may take. */
const STEP_MS = 50;
const ROUNDS = 3;
/** A step that takes this many times as long is not measured again. */
const HOPELESS = 2;

/**
 * The largest chunk whose step is short enough and takes no more time per token than those of smaller ones; at least the
 * one that the runner begins with. The runner uses it from now on. Steps are measured at the end of the longest context,
 * where they take longest. Throws what the runner throws, and the signal's reason.
 */
export async function chooseChunk(runner: SteppedRunner, options: TuneOptions): Promise<number> {
  const { tokens: capacity, chunk: least = capacity, context } = runner.limits;
  const larger = CHUNKS.filter((tokens) => tokens > least && tokens <= Math.min(capacity, context)).reverse();
  let [best, fastest] = [least, Infinity];
  for (const tokens of [least, ...larger]) {
    if (!(await runner.resize(tokens))) break;
    const time = await stepMs(runner, Math.min(tokens, context), options);
    if (time > STEP_MS) break;
    if (time / tokens > fastest) continue;
    [best, fastest] = [tokens, time / tokens];
  }
  await runner.resize(best);
  runner.chunk = best;
  return best;
}

/** The milliseconds of a step of a prompt, if steps follow each other without a pause. */
async function stepMs(runner: SteppedRunner, tokens: number, { pages, idle, signal }: TuneOptions): Promise<number> {
  const { context, pageSize, groups } = runner.limits;
  const batch = lastTokens(tokens, context, pageSize, groups, pages, false);
  let best = Infinity;
  // The first round warms up.
  for (let round = 0; round < ROUNDS && (round === 0 || best < HOPELESS * STEP_MS); round++) {
    const count = Math.max(1, Math.min(Math.floor(STEP_MS / best), runner.stepsInFlight));
    await idle();
    signal.throwIfAborted();
    const start = performance.now();
    await Promise.all(Array.from({ length: count }, async () => runner.submit(batch)));
    best = Math.min(best, (performance.now() - start) / count);
  }
  return best;
}
