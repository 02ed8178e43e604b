// Chooses the plans of a bundle that this runtime runs.

import { BundleError } from "../errors.js";
import type { Manifest, PlanEntry } from "./manifest.js";

/**
 * The plan "embed" of an embedding model, "classify" of a classifier, "ctc" of an encoder of sound, otherwise "generate". Throws BundleError for a
 * bundle without this plan.
 */
export function planOf({
  plans,
  embedding,
  classifier,
}: Pick<Manifest, "plans" | "embedding" | "classifier">): PlanEntry {
  const name =
    embedding !== null ? "embed" : classifier !== null ? "classify" : plans.ctc !== undefined ? "ctc" : "generate";
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

/**
 * `planOf`, the plan "draft" if the model's own heads guess tokens, "vision" if the model sees pictures, "hearing" if it
 * hears, and "audio" if it transcribes sound.
 */
export function plansOf(manifest: Pick<Manifest, "plans" | "embedding" | "classifier">): readonly PlanEntry[] {
  const { draft, vision, hearing, audio } = manifest.plans;
  return [planOf(manifest), draft, vision, hearing, audio].filter((plan) => plan !== undefined);
}

/** What all these plans name together. A name is the same array in all of them. */
export function arraysOf(manifest: Parameters<typeof plansOf>[0]): Omit<PlanEntry, "steps" | "outputs"> {
  const [first, ...others] = plansOf(manifest);
  return others.reduce<Omit<PlanEntry, "steps" | "outputs">>(
    (all, plan) => ({
      inputs: { ...all.inputs, ...plan.inputs },
      states: { ...all.states, ...plan.states },
      constants: { ...all.constants, ...plan.constants },
      buffers: { ...all.buffers, ...plan.buffers },
      gathered: { ...all.gathered, ...plan.gathered },
    }),
    first ?? planOf(manifest),
  );
}

/** The manifest without the plan of its own heads, which nothing is computed or allocated for then. */
export function withoutHeads(manifest: Manifest): Manifest {
  const { draft, ...plans } = manifest.plans;
  return draft === undefined ? manifest : { ...manifest, plans };
}
