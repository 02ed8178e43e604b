// Divides a memory budget between a model and its draft: both have room for equally long sequences.

import { DeviceError } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import type { Manifest } from "../runtime/manifest.js";
import { PREFILL_CHUNK } from "../runtime/memory.js";
import type { MemoryOptions, MemoryPlan } from "../runtime/memory_plan.js";

/** `planMemory` on the device. */
export type Planner = (manifest: Manifest, options: MemoryOptions) => MemoryPlan;

/** The memory of both together, and the options with which each is opened. */
export interface SharedMemory {
  readonly plan: MemoryPlan;
  readonly large: MemoryOptions;
  readonly small: MemoryOptions;
}

/**
 * ``options`` are the model's, with the budget of both. Its pages and experts are its own: a mixture that drafts is on
 * the device as a whole. Throws DeviceError if the two do not fit into the budget.
 */
export function shareMemory(plan: Planner, model: Manifest, draft: Manifest, options: MemoryOptions): SharedMemory {
  const { memoryBudget = Infinity, maxSequences = 4 } = options;
  const own = {
    ...options,
    memoryBudget: undefined,
    expertMemory: undefined,
    pages: undefined,
    draftTokens: 0,
    stateSnapshots: maxSequences,
    // Nothing measures the device's chunk for the draft.
    prefillChunk: PREFILL_CHUNK,
  };
  const bytesWith = (pages: number): number => plan(draft, { ...own, pages }).totalBytes;
  const beside = (bytes: number): MemoryOptions => ({ ...options, memoryBudget: memoryBudget - bytes });
  const whole = plan(draft, own);
  // The most pages that do not leave the model room for shorter sequences than the draft. One is for tuning.
  let [pages, above] = [1, whole.pages + 1];
  requireRoom(() => plan(model, beside(bytesWith(pages))), bytesWith(pages), memoryBudget);
  while (above - pages > 1) {
    const middle = Math.floor((pages + above) / 2);
    const context = contextOf(() => plan(model, beside(bytesWith(middle))));
    if (middle - 1 <= Math.ceil(context / draft.page_size)) pages = middle;
    else above = middle;
  }
  const { weightBytes, keyValueBytes, workingBytes, totalBytes } =
    pages === whole.pages ? whole : plan(draft, { ...own, pages });
  const large = beside(totalBytes);
  const found = plan(model, large);
  return {
    plan: {
      ...found,
      weightBytes: found.weightBytes + weightBytes,
      keyValueBytes: found.keyValueBytes + keyValueBytes,
      workingBytes: found.workingBytes + workingBytes,
      totalBytes: found.totalBytes + totalBytes,
      draftBytes: totalBytes,
    },
    large,
    small: { ...own, memoryBudget: totalBytes },
  };
}

/** The context of a plan; 0 if it does not fit into its budget. */
function contextOf(planned: () => MemoryPlan): number {
  try {
    return planned().context;
  } catch {
    return 0;
  }
}

/** Throws DeviceError with the bytes of both, if the model does not fit beside the ``draftBytes`` of the draft. */
function requireRoom(planned: () => MemoryPlan, draftBytes: number, budget: number): void {
  try {
    planned();
  } catch (error) {
    const needed = error instanceof DeviceError && "budget" in error.details ? Number(error.details.needed) : null;
    if (needed === null) throw error;
    throw new DeviceError(
      `The model and its draft take at least ${formatBytes(needed + draftBytes)} on the device, ` +
        `the budget is ${formatBytes(budget)}; raise it, or leave out the draft`,
      { needed: needed + draftBytes, budget },
    );
  }
}
