// The layers of a mixture whose experts a device may hold in part: their steps, their weights and the sizes of these.

import type { Manifest, PlaneEntry } from "./manifest.js";
import { planOf } from "./plan.js";

/** The projections of one layer by its experts. */
export interface ExpertLayer {
  /** The first of their steps, and the step after the last. */
  readonly start: number;
  readonly end: number;
  /** The buffer with the chosen experts of each token, (S, chosen). */
  readonly chosen: string;
  /** The weights with rows for each expert. */
  readonly weights: readonly string[];
}

/** All layers of experts, and the bytes of one expert of each of them together. */
export interface Mixture {
  readonly layers: readonly ExpertLayer[];
  readonly expertBytes: number;
  /** The experts of a layer, and those that a token chooses. */
  readonly number: number;
  readonly chosen: number;
}

/** Null for a dense model. */
export function mixtureOf(manifest: Manifest): Mixture | null {
  const { experts } = manifest.spec;
  if (experts === null) return null;
  const { number, chosen } = experts;
  const layers = expertLayers(manifest).filter(({ weights }) =>
    // Only complete words can be written to a device.
    planesOf(manifest, weights).every(({ size }) => size % (4 * number) === 0),
  );
  const bytes = layers.flatMap(({ weights }) => planesOf(manifest, weights)).reduce((sum, { size }) => sum + size, 0);
  return layers.length === 0 ? null : { layers, expertBytes: bytes / number, number, chosen };
}

/** A layer ends where the next one begins, which chooses its own experts. */
function expertLayers(manifest: Manifest): readonly ExpertLayer[] {
  const layers: ExpertLayer[] = [];
  let routed = 0;
  planOf(manifest).steps.forEach(({ op, inputs }, index) => {
    if (op === "route") routed = index;
    if (op !== "expert_linear") return;
    const { chosen = "", weight = "", bias } = inputs;
    const own = bias === undefined ? [weight] : [weight, bias];
    const before = layers.at(-1);
    const continues = before !== undefined && before.start > routed;
    if (continues) layers.pop();
    const { start, weights } = continues ? before : { start: index, weights: [] };
    layers.push({ start, end: index + 1, chosen, weights: [...weights, ...own] });
  });
  return layers;
}

function planesOf(manifest: Manifest, weights: readonly string[]): readonly PlaneEntry[] {
  return weights.flatMap((name) => manifest.weights[name]?.planes ?? []);
}
