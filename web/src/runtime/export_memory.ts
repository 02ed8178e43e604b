// The memory plan of a bundle in ONNX's form. Its manifest flows in, bytes and what fits flow out.

import { DeviceError } from "../errors.js";
import { filesToLoad } from "./bundle.js";
import type { ExportManifest } from "./manifest.js";
import type { MemoryOptions, MemoryPlan } from "./memory_plan.js";

/** Sequences that are run side by side, where it is not said. */
export const EXPORT_SEQUENCES = 4;

/**
 * A page holds a whole sequence and grows with it, so what is planned is the most that there can be. Where the budget holds not even one whole context,
 * sequences are shorter. Throws DeviceError where it holds not one token.
 */
export function planExport(
  manifest: ExportManifest,
  { memoryBudget = Infinity, maxSequences = EXPORT_SEQUENCES, pages }: MemoryOptions,
): MemoryPlan {
  const weightBytes = filesToLoad(manifest).reduce(
    (sum, { file, size }) => sum + (file === manifest.tokenizer.file ? 0 : size),
    0,
  );
  const tokenBytes = keyValueBytesPerToken(manifest);
  const workingBytes = 4 * manifest.spec.vocab_size * (maxSequences + 1);
  const free = memoryBudget - weightBytes - workingBytes;
  const context = Math.min(manifest.context, Math.floor(free / tokenBytes));
  if (context < 1) {
    const needed = weightBytes + workingBytes + tokenBytes;
    throw new DeviceError(
      `The model takes at least ${megabytes(needed)} MB, the budget is ${megabytes(memoryBudget)} MB; raise it, or use a smaller model`,
      {
        needed,
        budget: memoryBudget,
      },
    );
  }
  const pageBytes = context * tokenBytes;
  // One more than run, so that what was said last is kept beside them.
  const count = Math.min(pages ?? maxSequences + 1, Math.max(1, Math.floor(free / pageBytes)));
  const keyValueBytes = count * pageBytes;
  const totalBytes = weightBytes + keyValueBytes + workingBytes;
  return {
    weightBytes,
    keyValueBytes,
    pageBytes,
    workingBytes,
    totalBytes,
    pages: count,
    context,
    fits: context === manifest.context,
  };
}

/** Keys and values of all layers. */
export function keyValueBytesPerToken({ spec, activation }: ExportManifest): number {
  return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * (activation === "float32" ? 4 : 2);
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(0);
}
