// Describes the step of a load and its progress. A complete download may still wait for its kernels.

import type { LoadProgress } from "./model.js";
import { PHASES } from "./model.js";

export interface LoadState {
  readonly words: string;
  /** The bar shows bytes, or kernels once all bytes have arrived. */
  readonly done: number;
  readonly total: number;
  readonly unit: "bytes" | "kernels";
}

export function loadState({ phase, loadedBytes, totalBytes, compiledKernels, totalKernels }: LoadProgress): LoadState {
  const waitsForKernels =
    (phase === "download" || phase === "upload") &&
    totalBytes > 0 &&
    loadedBytes >= totalBytes &&
    compiledKernels < totalKernels;
  if (waitsForKernels)
    return { words: "Compiling kernels …", done: compiledKernels, total: totalKernels, unit: "kernels" };
  return { words: PHASES[phase], done: loadedBytes, total: totalBytes, unit: "bytes" };
}
