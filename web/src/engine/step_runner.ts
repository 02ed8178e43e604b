// What the engine needs of a device: to compute steps, and to store the state of sequences. The runtime's Runner does, and so does that of ONNX Runtime.

import type { Runner } from "../runtime/runner.js";

export interface StepRunner extends Pick<
  Runner,
  "limits" | "submit" | "setTokenCounts" | "setLogitBias" | "setTokenMask" | "copyPages" | "readPages" | "writePages"
> {
  /** How many steps are worth submitting before the first of them is read; 1 if a step waits only for the one before it. */
  readonly stepsInFlight: number;
  /** Whether any row of a sequence can be sampled, or only its last one. */
  readonly samplesAnyRow: boolean;
}
