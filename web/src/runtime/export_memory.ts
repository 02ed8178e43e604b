// The memory plan of an ONNX bundle, computed from its manifest.

import { DeviceError } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import { filesToLoad } from "../shared/files_to_load.js";
import type { ExportManifest } from "./manifest.js";
import type { MemoryOptions, MemoryPlan } from "./memory_plan.js";

/** The default number of sequences that run at the same time. */
export const EXPORT_SEQUENCES = 4;

/**
 * A page holds an entire sequence and grows with it, so the plan is for the largest possible pages. If the budget is
 * too small for one full context, sequences are shorter. Throws DeviceError if the budget is too small for one token.
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
      `The model takes at least ${formatBytes(needed)}, the budget is ${formatBytes(memoryBudget)}; ` +
        "raise it, or use a smaller model",
      {
        needed,
        budget: memoryBudget,
      },
    );
  }
  const pageBytes = context * tokenBytes;
  // One page more than the running sequences need, to retain the last finished conversation.
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
    experts: null,
    context,
    fits: context === manifest.context,
  };
}

/** The bytes of the keys and values of one token in all layers. */
export function keyValueBytesPerToken({ spec, activation }: ExportManifest): number {
  return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * (activation === "float32" ? 4 : 2);
}
