// The policy: which side may and should answer, as data. parsePolicy checks the content of a JSON file and adds all
// defaults. The types and the schema are generated from the Python router's, so that both accept the same files.

import { messageOf } from "../../errors.js";
import { contradictions } from "./contradictions.js";
import { compilePattern, refuseEmptyMatch } from "./pattern.js";
import type { Policy } from "./policy_schema.js";
import { POLICY_SCHEMA } from "./policy_schema.js";
import { checkPredictor, refuseOldPredictor } from "./predictor.js";
import { badPolicy, isObject, readValue } from "./schema_check.js";

export type * from "./policy_schema.js";

/**
 * Throws RequestError with the code "bad_policy" for an unknown key, a value out of range, and a contradiction; param
 * is the path of the value.
 */
export function parsePolicy(json: unknown): Policy {
  if (isObject(json) && isObject(json.quality)) refuseOldPredictor(json.quality.predictor, "quality.predictor");
  const policy = readValue(POLICY_SCHEMA, withDefaults(json)) as Policy;
  const { patterns, masks } = policy.private;
  patterns.forEach((pattern, index) => {
    checkPattern(pattern, `private.patterns[${index}]`);
  });
  masks?.patterns.forEach(({ pattern }, index) => {
    checkPattern(pattern, `private.masks.patterns[${index}].pattern`);
  });
  if (policy.quality.predictor !== null) checkPredictor(policy.quality.predictor, "quality.predictor");
  for (const [path, problem] of contradictions(policy)) throw badPolicy(path, problem);
  return policy;
}

function checkPattern(pattern: string, path: string): void {
  try {
    refuseEmptyMatch(pattern, compilePattern(pattern, false));
  } catch (error) {
    throw badPolicy(path, messageOf(error));
  }
}

/**
 * Changes the defaults that need a second side, or that forbid the only side, if there is only one side; and media may
 * leave if nothing else in the file makes requests private.
 */
function withDefaults(json: unknown): unknown {
  if (!isObject(json)) return json;
  const oneSided = json.mode === "near-only" || json.mode === "far-only";
  const { labels, patterns, masks } = isObject(json.private) ? json.private : {};
  const isOpen = ![labels, patterns].some((given) => Array.isArray(given) && given.length > 0) && !isObject(masks);
  return {
    ...json,
    ...(oneSided && over(json, "fallback", { near_continues: false, far_takes_over: false })),
    ...over(json, "private", { ...(json.mode === "far-only" && { labels: [] }), ...(isOpen && { media: "far" }) }),
  };
}

function over(
  json: Readonly<Record<string, unknown>>,
  key: string,
  values: Readonly<Record<string, unknown>>,
): Readonly<Record<string, unknown>> {
  const explicit = json[key] ?? (json[key] === null ? null : {});
  return { [key]: isObject(explicit) ? { ...values, ...explicit } : explicit };
}
