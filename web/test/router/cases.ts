// tests/conformance/router_cases.json, which the Python router runs too.

import { readFileSync } from "node:fs";

import type { AnswerFacts, Rules } from "../../src/shared/router/answer_machine.js";
import { rulesOf } from "../../src/shared/router/answer_machine.js";
import type { FarOutput } from "../../src/shared/decision/costs.js";
import type { Price } from "../../src/shared/decision/policy_schema.js";
import { parsePolicy } from "../../src/shared/decision/policy.js";
import type { Decision, Scores } from "../../src/shared/decision/decision.js";
import type { Finished, Speed } from "../../src/shared/decision/speed.js";
import type { FarState, NearState, Situation } from "../../src/shared/decision/situation.js";

type Changes = Partial<Omit<Situation, "near" | "far">> & {
  readonly near?: Partial<NearState>;
  readonly far?: Partial<FarState>;
};

export interface Case {
  readonly name: string;
  readonly policy: unknown;
  readonly situation: Changes;
  readonly decision?: Omit<Decision, "scores"> & {
    readonly scores?: Partial<Scores>;
    readonly describes?: readonly (readonly [message: number, part: number])[];
    readonly standby?: boolean;
  };
  readonly error?: { readonly code: string; readonly param: string };
}

interface Vectors {
  readonly situation: Situation;
  readonly cases: readonly Case[];
  readonly described: readonly {
    readonly name: string;
    readonly policy: unknown;
    readonly situation: Changes;
    readonly described: Changes;
    readonly is_private: boolean;
    readonly choice: object;
  }[];
  readonly features: readonly {
    readonly text: string;
    readonly features: Readonly<Record<string, number>>;
    readonly terms: readonly string[];
  }[];
  readonly price: Price;
  readonly paid: readonly {
    readonly name: string;
    readonly output: FarOutput;
    readonly prompt: number | null;
    readonly usd: number;
  }[];
  readonly speeds: readonly { readonly name: string; readonly finished: readonly Finished[]; readonly speed: Speed }[];
}

export const VECTORS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/router_cases.json", import.meta.url), "utf8"),
) as Vectors;

export function situationOf(changes: Changes): Situation {
  const base = VECTORS.situation;
  return { ...base, ...changes, near: { ...base.near, ...changes.near }, far: { ...base.far, ...changes.far } };
}

/** A public chat for a far side that is `nearfar serve`. */
export const CHAT: AnswerFacts = {
  private: false,
  prompt: "chat",
  format: null,
  tool_choice: null,
  continues: false,
  dialect: "nearfar",
};

/** The rules of an answer by a policy without an escalation. */
export const DEFAULT_RULES: Rules = rulesOf(
  parsePolicy({ version: 1, mode: "prefer-near", escalation: { warm: "never" } }),
  CHAT,
);
