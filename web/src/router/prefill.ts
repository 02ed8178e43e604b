// @nearfar/web/prefill: prompts that a server computes for an engine on this device. hybrid.js loads it if a policy has
// `prefill`.

export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export { NearfarError, RequestError, Unavailable } from "../errors.js";
export type { CacheHost, OpenFar, PrefillEnd, PrefillReport, PrefillSituation } from "../prefill/far_prefill.js";
export { FarPrefill } from "../prefill/far_prefill.js";
export type { PrefillDecision, PrefillFacts, PrefillReason, PrefillRules } from "../prefill/plan.js";
export { decidePrefill } from "../prefill/plan.js";
export type { PrefillCounts } from "./sides/prefilled_near.js";
export { PrefilledNear } from "./sides/prefilled_near.js";
