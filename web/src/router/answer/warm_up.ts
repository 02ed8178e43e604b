// A warm-up: far computes the prompt of an answer that near writes, so that far can start at once if it is asked. It
// generates one token, which is not shown. It is paid for like an answer. If something is wrong with far, the next real
// request shows it, so failures are not reported here.

import type { CompletionUsage } from "../../api/types.js";
import type { Ledger } from "../budget.js";
import { isSpent, paidUsd } from "../../shared/decision/costs.js";
import type { Policy } from "../../shared/decision/policy.js";
import type { PrefixMessage } from "../../shared/decision/prefix_memory.js";
import type { SideRecord } from "./side_record.js";
import type { PlainParams, Side } from "../sides/sides.js";

export interface WarmUp {
  readonly params: PlainParams;
  readonly conversation: readonly PrefixMessage[];
  readonly far: Side;
  readonly record: SideRecord;
  readonly ledger: Ledger;
  readonly policy: Policy;
  /** In seconds, of any clock that does not go back. */
  readonly now: () => number;
}

/** Does nothing if far's circuit is not closed or today's budget is spent. */
export async function warmUp(
  { params, conversation, far, record, ledger, policy, now }: WarmUp,
  signal: AbortSignal,
): Promise<void> {
  if (record.circuit.state !== "closed" || isSpent(policy.budget, ledger.today())) return;
  ledger.add({ requests: 1 });
  let usage: CompletionUsage | null = null;
  try {
    for await (const chunk of far.answer({ params: promptOnly(params), from: null, logprobs: null, signal }))
      usage = chunk.usage ?? usage;
    record.memory.remember(conversation, "", now());
  } catch {
    // Nothing waits for the warm-up.
  } finally {
    if (usage !== null) ledger.add({ usd: paidUsd(policy, { usage, tokens: 0, refused: false }, 0) });
  }
}

/** The same prompt, with one token, the least that a server generates, and without a format. */
export function promptOnly(params: PlainParams): PlainParams {
  // One token cannot be a tool call, so none may be required. Without the tools it would be another prompt.
  const choice = params.tool_choice === "none" ? params.tool_choice : undefined;
  return {
    ...params,
    tool_choice: choice,
    max_tokens: 1,
    max_completion_tokens: undefined,
    stop: undefined,
    response_format: undefined,
    logprobs: undefined,
    top_logprobs: undefined,
  };
}
