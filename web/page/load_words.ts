// Describes the step of a load and its progress. A complete download may still wait for its kernels.

import { formatBytes } from "../src/format_bytes.js";
import type { LoadProgress } from "./model.js";
import { PHASES } from "./model.js";

export interface LoadState {
  readonly words: string;
  /** The progress in words; "" before it is known. */
  readonly amount: string;
  readonly done: number;
  /** Null if it is unknown, as for the runs of the self-test. */
  readonly total: number | null;
  /** The bar shows bytes, kernels once all bytes have arrived, and then runs of the self-test. */
  readonly unit: "bytes" | "kernels" | "runs";
}

export function loadState(progress: LoadProgress): LoadState {
  const { phase, loadedBytes, totalBytes, compiledKernels, totalKernels, selfTestRuns = 0 } = progress;
  if (phase === "self-test") {
    const run = selfTestRuns + 1;
    return { words: PHASES[phase], amount: `run ${run}`, done: run, total: null, unit: "runs" };
  }
  const waitsForKernels =
    (phase === "download" || phase === "upload") &&
    totalBytes > 0 &&
    loadedBytes >= totalBytes &&
    compiledKernels < totalKernels;
  if (waitsForKernels) {
    const amount = `${compiledKernels} of ${totalKernels}`;
    return { words: "Compiling kernels …", amount, done: compiledKernels, total: totalKernels, unit: "kernels" };
  }
  const amount = totalBytes === 0 ? "" : `${formatBytes(loadedBytes)} of ${formatBytes(totalBytes)}`;
  return { words: PHASES[phase], amount, done: loadedBytes, total: totalBytes, unit: "bytes" };
}
