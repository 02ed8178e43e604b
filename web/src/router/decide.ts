// The decision: a policy and a situation flow in, who answers and why flows out. Pure, and total: every situation has an answer.

import type { Decision } from "./decision.js";
import type { Policy } from "./policy.js";
import type { Situation } from "./situation.js";

/** Throws RequestError with the code "unknown_label" for a label that the policy does not have, and for nothing else. */
export type Decide = (policy: Policy, situation: Situation) => Decision;
