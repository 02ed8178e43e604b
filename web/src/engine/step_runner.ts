// What the engine needs of a device: to take steps, and to keep what belongs to a sequence. The runtime's Runner does it, and that of ONNX Runtime.

import type { Runner } from "../runtime/runner.js";

export interface StepRunner
  extends Pick<Runner, "limits" | "submit" | "setTokenCounts" | "setLogitBias" | "setTokenMask" | "copyPages" | "readPages" | "writePages"> {
  /** Steps that are worth handing over before the first of them is read; 1 where a step waits for nothing but the one before it. */
  readonly stepsInFlight: number;
  /** Whether any rows of a sequence may be sampled; else the last of each only. */
  readonly samplesAnyRow: boolean;
}
