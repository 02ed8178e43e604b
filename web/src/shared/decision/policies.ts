// The policies of Python by key. They stay here, because a predictor's weights are large.

import type { AnswerFacts, Rules } from "../router/answer_machine.js";
import { rulesOf } from "../router/answer_machine.js";
import type { Choice, DescribedChoice } from "./decide.js";
import { choose, chooseDescribed, encodingPolicy } from "./decide.js";
import type { Policy } from "./policy_schema.js";
import type { Situation } from "./situation.js";

/** More policies than a process uses at once. */
const MOST = 16;
const policies = new Map<string, Policy>();

/** ``policy`` was read by `parsePolicy`. */
export function keepPolicy(key: string, policy: Policy): void {
  policies.set(key, policy);
  const [oldest] = policies.keys();
  if (policies.size > MOST && oldest !== undefined) policies.delete(oldest);
}

/** As `choose`; ``embeds``: for embeddings instead of an answer. Null: the policy must be kept again. */
export function chooseBy(key: string, situation: Situation, isPrivate: boolean, embeds: boolean): Choice | null {
  const policy = policies.get(key);
  if (policy === undefined) return null;
  return choose(embeds ? encodingPolicy(policy) : policy, situation, isPrivate);
}

/** As `chooseDescribed`, and null as `chooseBy`. */
export function chooseDescribedBy(
  key: string,
  original: Situation,
  described: Situation,
  isPrivate: boolean,
): DescribedChoice | null {
  const policy = policies.get(key);
  return policy === undefined ? null : chooseDescribed(policy, original, described, isPrivate);
}

/** As `rulesOf`, and null as `chooseBy`. */
export function rulesBy(key: string, facts: AnswerFacts): Rules | null {
  const policy = policies.get(key);
  return policy === undefined ? null : rulesOf(policy, facts);
}
