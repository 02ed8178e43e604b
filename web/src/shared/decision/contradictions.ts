// Contradictions in a policy whose values are each allowed: yields the path of each and what is wrong there.

import type { MaskRules, Policy } from "./policy_schema.js";
import { badPolicy } from "./schema_check.js";

type Contradictions = Iterable<readonly [path: string, problem: string]>;

export function* contradictions(policy: Policy): Contradictions {
  yield* ofLabels(policy);
  if (policy.mode === "near-only" || policy.mode === "far-only") yield* ofOneSide(policy);
  if (policy.mode === "far-only") {
    const problem = "in mode far-only a private request could never be answered";
    if (policy.private.labels.length > 0) yield ["private.labels", problem];
    if (policy.private.patterns.length > 0) yield ["private.patterns", problem];
    if (policy.private.media !== "far")
      yield ["private.media", 'in mode far-only a request with media could never be answered; write "far"'];
  }
  if (policy.private.masks !== null) yield* ofMasks(policy, policy.private.masks);
  if (policy.mode === "near-only") {
    if (policy.private.media === "describe") yield ["private.media", "in mode near-only nothing is described for far"];
    if (policy.budget.far_usd_per_day !== null)
      yield ["budget.far_usd_per_day", "in mode near-only nothing is spent on the far side"];
    if (policy.budget.far_requests_per_day !== null)
      yield ["budget.far_requests_per_day", "in mode near-only the far side gets no requests"];
  }
  if (policy.mode === "prefer-far" && policy.timeouts.hedge_after_ms !== null) {
    yield ["timeouts.hedge_after_ms", "hedging asks far if near is slow, but mode prefer-far asks far first"];
  }
  if (policy.mode !== "auto") yield* ofAuto(policy);
}

/**
 * Throws RequestError with the code "bad_policy" for a policy that these sides cannot follow. ``dialect``: of the far
 * side; null if there is none.
 */
export function checkSides(
  { mode, escalation }: Pick<Policy, "mode" | "escalation">,
  near: boolean,
  dialect: string | null,
): void {
  const far = dialect !== null;
  const missing =
    (!near && !far) || (!near && mode === "near-only") ? "near" : !far && mode === "far-only" ? "far" : null;
  if (missing !== null) throw badPolicy("mode", `with ${mode} no other side answers; set ${missing}`);
  if (escalation.then === "continue" && dialect === "openai")
    throw badPolicy("escalation.then", 'a server of dialect openai cannot continue; use "restart"');
}

/** A model that finds entities. ``kinds``: those of its labels' names, null for one that is not private; if known. */
export interface Finds {
  readonly kinds?: readonly (readonly [name: string, kind: string | null])[] | undefined;
}

/**
 * Throws RequestError with the code "bad_policy" for masks that need more. ``asks``: the application is asked.
 */
export function checkMasks({ private: { masks } }: Pick<Policy, "private">, finder: Finds | null, asks: boolean): void {
  const wanted = masks?.entities ?? [];
  if (wanted.length > 0 && finder === null)
    throw badPolicy("private.masks.entities", "no model finds them; set finder, or remove them");
  const kinds = finder?.kinds ?? [];
  for (const [index, { label }] of wanted.entries()) {
    if (finder?.kinds === undefined || kinds.some(([, kind]) => kind === label)) continue;
    const own = kinds.find(([name]) => name === label)?.[1];
    const found = [...new Set(kinds.flatMap(([, kind]) => kind ?? []))].join(", ");
    throw badPolicy(
      `private.masks.entities[${index}].label`,
      own == null
        ? `the finder finds no '${label}'; write one of its kinds: ${found}`
        : `'${label}' is the model's own name of a kind; write "label": "${own}", which every finder understands`,
    );
  }
  if (masks?.then === "ask" && !asks)
    throw badPolicy("private.masks.then", 'nobody can be asked; set confirm, or use "mask" or "near"');
}

function* ofMasks({ mode, speculation }: Policy, { patterns, entities, then, strict }: MaskRules): Contradictions {
  if (mode === "near-only") yield ["private.masks", "in mode near-only nothing is masked for far"];
  if (mode === "far-only" && then === "near")
    yield ["private.masks.then", "in mode far-only a private request could never be answered"];
  if (patterns.length + entities.length === 0) yield ["private.masks", "there are no patterns and no entities"];
  if ((entities.length > 0 || strict) && speculation !== null)
    yield ["speculation", "near's guesses are neither searched for entities nor shown, as private.masks requires"];
  for (const [name, list] of [
    ["patterns", patterns],
    ["entities", entities],
  ] as const)
    for (const [index, { kind }] of list.entries())
      if (!/^[A-Z]+$/.test(kind))
        yield [`private.masks.${name}[${index}].kind`, `'${kind}' must have letters A to Z only`];
}

function* ofLabels(policy: Policy): Contradictions {
  const seen = new Set<string>();
  for (const [path, labels] of [
    ["labels", policy.labels],
    ["private.labels", policy.private.labels],
  ] as const) {
    for (const label of labels) {
      if (seen.has(label)) yield [path, `the label '${label}' appears twice; a label is either plain or private`];
      seen.add(label);
    }
  }
}

function* ofOneSide(policy: Policy): Contradictions {
  const problem = `in mode ${policy.mode} there is no other side`;
  if (policy.escalation.then !== "never") yield ["escalation.then", problem];
  if (policy.speculation !== null) yield ["speculation", problem];
  if (policy.prefill !== null) yield ["prefill", problem];
  if (policy.fallback.near_continues) yield ["fallback.near_continues", problem];
  if (policy.fallback.far_takes_over) yield ["fallback.far_takes_over", problem];
  if (policy.timeouts.hedge_after_ms !== null) yield ["timeouts.hedge_after_ms", problem];
}

function* ofAuto({ mode, device, costs, quality }: Policy): Contradictions {
  const isSet = {
    "device.min_battery": device.min_battery !== null,
    "device.max_thermal": device.max_thermal !== null,
    "device.max_first_token_seconds": device.max_first_token_seconds !== null,
    "costs.max_first_token_seconds": costs.max_first_token_seconds !== null,
    "costs.max_total_seconds": costs.max_total_seconds !== null,
    "quality.predictor": quality.predictor !== null,
    "quality.threshold": quality.threshold !== 0,
  };
  for (const [path, isUsed] of Object.entries(isSet))
    if (isUsed) yield [path, `only mode auto uses it; the mode is ${mode}`];
}
