// The stake of an agent's step: how likely near errs in it more than in a plain question, and how much a right step is
// worth. A router weighs it beside its predictor, its prices and its rules.
//
// The shares are set by judgement, not fitted: set others, or 0, as `routing` of an agent.

import { RequestError } from "../../errors.js";
import { isA, shown } from "../declared.js";

/** ``doubt`` is added to the difference of the sides' probabilities to be right, and ``weight`` multiplies the sum. */
export interface Stake {
  readonly weight: number;
  readonly doubt: number;
}

export interface RoutingShares {
  /** What the weight of the last allowed step is above 1: no later step mends its error. */
  readonly late: number;
  /** The doubt for each call in a row that failed or was refused. */
  readonly failed: number;
  /** The doubt for 16 KiB or more of results to read; none up to 2 KiB, between them in proportion. */
  readonly reading: number;
  /** The doubt for 32 or more tools to choose from; none up to 8, between them in proportion. */
  readonly choosing: number;
}

/** What a step depends on. */
export interface StepFacts {
  /** From 0. */
  readonly step: number;
  readonly steps: number;
  readonly failures: number;
  /** Of the results since the last step. */
  readonly result_bytes: number;
  readonly tools: number;
}

export interface ReasonedStake extends Stake {
  /** What made it so, for people. */
  readonly reasons: readonly string[];
}

export const DEFAULT_SHARES: RoutingShares = { late: 1, failed: 0.25, reading: 0.2, choosing: 0.2 };
/** Bounds of what a router accepts. */
export const STAKE_TYPES = { weight: "number 0..100", doubt: "number 0..1" } as const;
/** Up to the first, a step is easy. */
const READING = { easy: 2048, hard: 16_384 };
const CHOOSING = { easy: 8, hard: 32 };

/** Throws RequestError for an unknown share, or one out of its range. */
export function readShares(given: unknown): RoutingShares {
  const own = (given ?? {}) as Readonly<Record<string, unknown>>;
  for (const [name, share] of Object.entries(own)) {
    const known = Object.hasOwn(DEFAULT_SHARES, name);
    const type = name === "late" ? "number 0..99" : "number 0..1";
    if (!known || !isA(type, share))
      throw new RequestError(
        known
          ? `routing.${name} is ${shown(share)}, it must be a number from 0 to ${name === "late" ? 99 : 1}`
          : `routing.${name} is not supported; supported: ${Object.keys(DEFAULT_SHARES).join(", ")}`,
        { param: "routing" },
      );
  }
  return { ...DEFAULT_SHARES, ...own };
}

export function stakeOf(facts: StepFacts, shares: RoutingShares): ReasonedStake {
  const { step, steps, failures, result_bytes: bytes, tools } = facts;
  const share = (part: number, { easy, hard }: typeof READING): number =>
    Math.min(1, Math.max(0, (part - easy) / (hard - easy)));
  const doubts: readonly (readonly [number, string])[] = [
    [shares.failed * failures, failures === 1 ? "the last call failed" : `the last ${failures} calls failed`],
    [shares.reading * share(bytes, READING), `${bytes} bytes of results to read`],
    [shares.choosing * share(tools, CHOOSING), `${tools} tools to choose from`],
  ];
  const late = steps < 2 ? 0 : shares.late * share(step, { easy: 0, hard: steps - 1 });
  return {
    weight: 1 + late,
    doubt: Math.min(
      1,
      doubts.reduce((sum, [doubt]) => sum + doubt, 0),
    ),
    reasons: [
      // A doubt of less than a hundredth explains nothing.
      ...doubts.flatMap(([doubt, reason]) => (doubt >= 0.01 ? [reason] : [])),
      ...(late > 0 ? [`step ${step + 1} of at most ${steps}`] : []),
    ],
  };
}
