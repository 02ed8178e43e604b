// The interface of a device for models that make vectors or scores. encoders.js has the engines.

import type { Runner } from "../runtime/runner.js";

export type TextRunner = Pick<Runner, "limits" | "encode">;
