// The interface of a device for the engine: it computes steps and stores the state of sequences. The runtime's Runner
// and the ONNX runner implement it.

import type { Runner } from "../runtime/runner.js";

export interface StepRunner
  extends
    Pick<
      Runner,
      | "limits"
      | "submit"
      | "setTokenCounts"
      | "setLogitBias"
      | "setTokenMask"
      | "copyPages"
      | "readPages"
      | "writePages"
    >,
    Partial<Pick<Runner, "writeState" | "chunk" | "expertCounts" | "features" | "listen" | "forwardLogits">> {
  /**
   * The number of steps that are worth submitting before the first of them is read; 1 if a step only waits for the
   * previous one.
   */
  readonly stepsInFlight: number;
  /** Whether any row of a sequence can be sampled, or only its last one. */
  readonly samplesAnyRow: boolean;
}

/** The same for models that make vectors or scores. encoders.js has the engines. */
export type TextRunner = Pick<Runner, "limits" | "encode">;
