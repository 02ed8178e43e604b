// A backend: a bundle on a device, ready to answer. WebGPU's is a runner that has passed its self-test on this device;
// onnx_backend.ts opens ONNX Runtime's.

import type { Drafting } from "./drafts/drafting.js";
import type { StepRunner } from "./engine/step_runner.js";
import type { TextRunner } from "./engine/step_runner.js";
import type { TunedEngine } from "./engine/tuner.js";
import { Tuner } from "./engine/tuner.js";
import type { Bundle } from "./runtime/bundle.js";
import { importDrafts } from "./runtime/import_later.js";
import type { MemoryOptions } from "./runtime/memory_plan.js";
import type { OnBytes } from "./runtime/source.js";
import type { SelfTestInfo, TrustOptions } from "./runtime/trust.js";
import { openTrusted } from "./runtime/trust.js";
import type { ActivationDtype } from "./runtime/variants.js";

/** Sizes in bytes. */
export interface BackendInfo {
  readonly target: "webgpu" | "onnx";
  /** The adapter as the browser describes it, or ONNX Runtime and its version. */
  readonly adapter: string;
  readonly activation: ActivationDtype;
  readonly selfTest: SelfTestInfo;
  /** The number of our kernels; null if the framework uses its own. */
  readonly kernels: number | null;
  /** Dispatches for a forward of one token; null if the framework does not report them. */
  readonly dispatchesPerToken: number | null;
  readonly weightBytes: number;
  readonly stateBytes: number;
  readonly totalBytes: number;
  /** What the bundle of a draft takes of ``totalBytes``, if there is one. */
  readonly draftBytes?: number;
}

export interface Backend {
  readonly runner: StepRunner & TextRunner;
  /** The drafts of answers, if there are any; by default they begin when tuning has shown that they can pay. */
  readonly drafting?: Drafting | undefined;
  readonly info: BackendInfo;
  /** Measures faster variants while ``engine`` is idle; null if there is nothing to choose. */
  startTuning(engine: TunedEngine): Tuner | null;
  /** Frees the device and all its memory. */
  destroy(): void;
}

/** The callbacks for progress while a backend opens, and the signal that ends it. */
export interface Opening {
  readonly signal: AbortSignal;
  readonly onBytes: OnBytes;
  readonly onKernel: (done: number, total: number) => void;
  /** Called before each run of the self-test, with the number of earlier runs. */
  readonly onTest: (runs: number) => void;
}

/** Throws BundleError, DeviceError, or the signal's reason. */
export async function openWebGpu(
  bundle: Bundle,
  options: TrustOptions & MemoryOptions,
  opening: Opening,
): Promise<Backend> {
  const { maxSequences, maxBatchTokens, pages, maxAdapters, stateSnapshots, draftTokens, prefillChunk } = options;
  const { memoryBudget, expertMemory } = options;
  const { onTest, ...rest } = opening;
  const sizes = {
    maxSequences,
    maxBatchTokens,
    pages,
    maxAdapters,
    stateSnapshots,
    draftTokens,
    prefillChunk,
    memoryBudget,
    expertMemory,
  };
  const trusted = await openTrusted(bundle, options, { ...sizes, ...rest }, onTest);
  const { runner, device, selfTest } = trusted;
  let drafting: Drafting | undefined;
  return {
    runner,
    get drafting() {
      return drafting;
    },
    get info() {
      return {
        target: "webgpu" as const,
        adapter: device.adapter,
        activation: device.activation,
        selfTest,
        ...runner.info,
      };
    },
    startTuning: (engine) => {
      const tuner = new Tuner(trusted, engine, typeof options.tuning === "object" ? options.tuning : null);
      if (draftTokens === undefined)
        void adaptiveDrafting(tuner.record).then((found) => {
          drafting = found;
        });
      return tuner;
    },
    destroy: () => {
      runner.destroy();
    },
  };
}

/** The drafts that are made by default: those of the text, if they can pay on a device with this record. */
async function adaptiveDrafting(record: Tuner["record"]): Promise<Drafting | undefined> {
  try {
    const times = (await record)?.steps?.decode;
    // No text is worth more than a token for each row.
    if (times?.steps.some(({ rows, ms }) => rows * times.ahead_ms > ms) !== true) return undefined;
    return (await importDrafts()).adaptiveDrafting(times);
  } catch {
    // Answers are the same without drafts.
    return undefined;
  }
}
