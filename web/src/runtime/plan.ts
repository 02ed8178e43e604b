// Chooses the plan of a bundle that this runtime runs.

import { BundleError } from "../errors.js";
import type { Manifest, PlanEntry } from "./manifest.js";

/**
 * The plan "embed" of an embedding model, "classify" of a classifier, otherwise "generate". Throws BundleError for a
 * bundle without this plan.
 */
export function planOf({
  plans,
  embedding,
  classifier,
}: Pick<Manifest, "plans" | "embedding" | "classifier">): PlanEntry {
  const name = embedding !== null ? "embed" : classifier !== null ? "classify" : "generate";
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
