// The complete plan of a model on the weights of its probe's few layers, so that its steps can be timed as they will run;
// and the few variants that those steps need.

import type { Choices } from "../runtime/choices.js";
import { arrange, variantName } from "../runtime/choices.js";
import type { Dims } from "../runtime/expr.js";
import { holds } from "../runtime/expr.js";
import type { Manifest, PlanEntry, StepEntry, VariantEntry } from "../runtime/manifest.js";
import { planOf } from "../runtime/plan.js";
import type { ActivationDtype } from "../runtime/variants.js";
import { chooseRow, usableRows } from "../runtime/variants.js";
import type { ProbeFile } from "./schema.js";

/** The first number in the name of a weight or a state is that of its layer; see compiler/passes/keep_layers.py. */
const NUMBER = /(^|\.)(\d+)\./;
/** Steps that run for requests with options only. Their kernels need not compile. */
const SELDOM = new Set(["top_logprobs", "adjust_logits"]);

/** The plan without its steps for options. */
export function usualSteps(plan: PlanEntry): PlanEntry {
  return { ...plan, steps: plan.steps.filter(({ op }) => !SELDOM.has(op)) };
}

/** The complete plan, of which each layer has the weights and states of the one that stands for it in the probe. */
export function wholePlan(complete: Manifest, { layers }: ProbeFile, probed: PlanEntry): PlanEntry {
  const plan = usualSteps(planOf(complete));
  const own = new Map<string, string>();
  for (const name of [...Object.keys(complete.weights), ...Object.keys(plan.states)])
    own.set(
      name,
      name.replace(NUMBER, (_, dot: string, number: string) => `${dot}${layers[Number(number)] ?? number}.`),
    );
  // Both plans number their buffers, so that one name may be two arrays.
  for (const [name, entry] of Object.entries(plan.buffers)) {
    const other = probed.buffers[name];
    if (other !== undefined && JSON.stringify(other) !== JSON.stringify(entry)) own.set(name, `whole.${name}`);
  }
  const renamed = <T>(entries: Readonly<Record<string, T>>, change: (value: T) => T): Record<string, T> =>
    Object.fromEntries(Object.entries(entries).map(([role, value]) => [role, change(value)]));
  const named = (name: string): string => own.get(name) ?? name;
  return {
    ...plan,
    states: probed.states,
    buffers: Object.fromEntries(Object.entries(plan.buffers).map(([name, entry]) => [named(name), entry])),
    steps: plan.steps.map((step) => ({
      ...step,
      inputs: renamed(step.inputs, named),
      outputs: renamed(step.outputs, named),
    })),
    outputs: renamed(plan.outputs, named),
  };
}

/** For each number of layers, the number of the complete plan's steps that compute them and what precedes them. */
export function layerEnds(complete: Manifest): readonly number[] {
  const plan = usualSteps(planOf(complete));
  const isStored = (name: string): boolean => name in complete.weights || name in plan.states;
  const ends: number[] = [];
  let current: number | null = null;
  plan.steps.forEach(({ op, inputs }: StepEntry, index) => {
    const names = Object.values(inputs);
    const stored = names.filter(isStored);
    const number = stored.map((name) => NUMBER.exec(name)?.[2]).find((found) => found !== undefined);
    if (op === "pool_rows" || names.includes("sample_rows")) current = null;
    else if (number !== undefined) current = Number(number);
    else if (stored.length > 0) current = null;
    if (current !== null) ends[current] = index + 1;
  });
  return ends.filter((end) => end > 0);
}

/**
 * The variants by which a device runs ``batches`` under ``choices``, and those that ``tests`` need besides: as few as
 * possible, because their compilation takes most of a probe's time.
 */
export function neededVariants(
  manifest: Manifest,
  activation: ActivationDtype,
  features: ReadonlySet<string>,
  choices: Choices,
  batches: readonly Dims[],
  tests: readonly Dims[],
): Record<string, readonly VariantEntry[]> {
  const lists = new Set(Object.values(manifest.plans).flatMap(({ steps }) => steps.map(({ variants }) => variants)));
  const needed = (list: string): readonly VariantEntry[] => {
    const usable = usableRows(manifest, list, activation, features);
    const rows = arrange(usable, list, choices);
    const names = new Set(batches.map((dims) => variantName(chooseRow(rows, dims))));
    const kept = (): readonly VariantEntry[] => usable.filter((row) => names.has(variantName(row)));
    for (const dims of tests)
      if (!arrange(kept(), list, choices).some(({ when }) => holds(when, dims)))
        names.add(variantName(chooseRow(rows, dims)));
    return kept();
  };
  return { ...manifest.variants, ...Object.fromEntries([...lists].map((list) => [list, needed(list)])) };
}
