// The plan that this runtime runs, of those that a bundle has.

import { BundleError } from "../errors.js";
import type { Manifest, PlanEntry } from "./manifest.js";

/** Plan "embed" of a bundle that embeds, else "generate". Throws BundleError for a bundle without it. */
export function planOf({ plans, embedding }: Pick<Manifest, "plans" | "embedding">): PlanEntry {
  const name = embedding === null ? "generate" : "embed";
  const plan = plans[name];
  if (plan === undefined) {
    const known = Object.keys(plans);
    throw new BundleError(`manifest.json: has no plan '${name}', only ${known.join(", ")}; use a newer @nearfar/web`, {
      plan: name,
      known,
    });
  }
  return plan;
}
