// The policy: which side may and should answer, as data. What a JSON file holds flows in, a checked policy with all defaults flows out.

import type { Policy } from "./policy_schema.js";

export type * from "./policy_schema.js";

/** Throws RequestError with the code "bad_policy" for a key that is not known, a value out of range, and a contradiction; param names the place. */
export type ParsePolicy = (json: unknown) => Policy;
