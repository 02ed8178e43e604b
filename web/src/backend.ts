// A backend: a bundle on a device, ready to answer. WebGPU has one (webgpu_backend.ts), ONNX Runtime another (onnx/); the engine knows this page only.

import type { EmbedRunner } from "./engine/embedder.js";
import type { StepRunner } from "./engine/step_runner.js";
import type { TunedEngine, Tuner } from "./engine/tuner.js";
import type { OnBytes } from "./runtime/source.js";
import type { SelfTestInfo } from "./runtime/trust.js";
import type { ActivationDtype } from "./runtime/variants.js";

/** Sizes in bytes. */
export interface BackendInfo {
  readonly target: "webgpu" | "onnx";
  /** What computes: the adapter as the browser describes it, or ONNX Runtime and its version. */
  readonly adapter: string;
  readonly activation: ActivationDtype;
  readonly selfTest: SelfTestInfo;
  /** Of ours; null where the framework has its own. */
  readonly kernels: number | null;
  /** Those of a forward of one token; null where the framework does not tell. */
  readonly dispatchesPerToken: number | null;
  readonly weightBytes: number;
  readonly stateBytes: number;
  readonly totalBytes: number;
}

export interface Backend {
  readonly runner: StepRunner & EmbedRunner;
  readonly info: BackendInfo;
  /** Looks for faster ways to compute while ``engine`` is idle; null where there is nothing to choose. */
  startTuning(engine: TunedEngine): Tuner | null;
  /** Frees the device and all its memory. */
  destroy(): void;
}

/** What is told while a backend opens, and what ends it. */
export interface Opening {
  readonly signal: AbortSignal;
  readonly onBytes: OnBytes;
  readonly onKernel: (done: number, total: number) => void;
  /** The self-test starts. */
  readonly onTest: () => void;
}
