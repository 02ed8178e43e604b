// Costs: how long each side would take, and what far would charge. Unknown values are null.

import type { Budget, Policy, Price } from "./policy_schema.js";
import type { Usage } from "../router/usage.js";
import { isObject } from "./schema_check.js";
import type { FarState, NearState, Situation } from "./situation.js";

/** The expected length of an answer without a limit. */
const EXPECTED_TOKENS = 64;

/** What far cost in a day. */
export interface Spent {
  readonly usd: number;
  readonly requests: number;
}

const NOTHING: Spent = { usd: 0, requests: 0 };

/** In seconds after the request is sent. */
export interface Times {
  readonly first: number | null;
  readonly total: number | null;
}

export function nearTimes(situation: Situation): Times {
  return timesOf(situation.near, situation.near.queue_seconds, situation);
}

export function farTimes(situation: Situation): Times {
  const { queue_seconds, round_trip_seconds } = situation.far;
  return timesOf(situation.far, round_trip_seconds === null ? null : queue_seconds + round_trip_seconds, situation);
}

/** The expected price of far's answer. Cached tokens cost the same. */
export function farUsd({ price }: Policy, situation: Situation): number | null {
  const { prompt_tokens } = situation.far;
  if (prompt_tokens === null) return null;
  return usdOf(price, { prompt_tokens, completion_tokens: expectedTokens(situation) });
}

/** The output of a request to far. ``refused``: it failed before far sent anything. */
export interface FarOutput {
  /** As far reports it; null if it does not. */
  readonly usage: Pick<Usage, "prompt_tokens" | "completion_tokens"> | null;
  readonly tokens: number;
  readonly refused: boolean;
}

/**
 * What far charges for a request. Without a report, or with one of impossible counts, the expected prompt and the tokens
 * that arrived count, also of a request that was cancelled: its prompt may have been computed.
 */
export function paidUsd(
  { price }: Pick<Policy, "price">,
  { usage, tokens, refused }: FarOutput,
  prompt: number | null,
): number {
  if (refused) return 0;
  const reported = usage !== null && isCount(usage.prompt_tokens) && isCount(usage.completion_tokens);
  return usdOf(price, reported ? usage : { prompt_tokens: prompt ?? 0, completion_tokens: tokens });
}

function isCount(reported: number): boolean {
  return Number.isSafeInteger(reported) && reported >= 0;
}

function usdOf(
  price: Price,
  { prompt_tokens, completion_tokens }: { readonly prompt_tokens: number; readonly completion_tokens: number },
): number {
  return (prompt_tokens * price.prompt_usd_per_million + completion_tokens * price.completion_usd_per_million) / 1e6;
}

/** Whether the budget of the day is spent. */
export function isSpent({ far_requests_per_day: requests, far_usd_per_day: usd }: Budget, spent: Spent): boolean {
  return (requests !== null && spent.requests >= requests) || (usd !== null && spent.usd >= usd);
}

/** The spending of ``day`` in a ledger's text; nothing if the text is of another day. */
export function spentOn(text: string | null, day: string): Spent {
  const entry = text === null ? null : parsed(text);
  if (!isObject(entry) || entry.day !== day || typeof entry.usd !== "number" || !Number.isInteger(entry.requests))
    return NOTHING;
  return { usd: entry.usd, requests: entry.requests as number };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function expectedTokens({ max_tokens }: Situation): number {
  return max_tokens ?? EXPECTED_TOKENS;
}

function timesOf(side: NearState | FarState, waitSeconds: number | null, situation: Situation): Times {
  const { prompt_tokens, cached_tokens, prefill_tokens_per_second: prefill, decode_tokens_per_second: decode } = side;
  if (waitSeconds === null || prompt_tokens === null || prefill === null || prefill === 0)
    return { first: null, total: null };
  const first = waitSeconds + Math.max(prompt_tokens - cached_tokens, 0) / prefill;
  return { first, total: decode === null || decode === 0 ? null : first + expectedTokens(situation) / decode };
}
