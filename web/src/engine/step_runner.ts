// What the engine needs of a device: to take steps, and to keep what belongs to a sequence. The runtime's Runner does it; tests have another.

import type { Runner } from "../runtime/runner.js";

export type StepRunner = Pick<
  Runner,
  "limits" | "submit" | "setTokenCounts" | "setLogitBias" | "setTokenMask" | "copyPages" | "readPages" | "writePages"
>;
