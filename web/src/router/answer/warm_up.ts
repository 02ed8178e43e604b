// A warm-up: far computes the prompt of an answer that near writes, so that it begins at once should it be asked. It says one token, which nobody sees. It
// is paid for like an answer; what is wrong with far shows when it is asked in earnest, so that it failed is told to nobody.

import type { CompletionUsage } from "../../api/types.js";
import type { Ledger } from "../decision/budget.js";
import { isSpent } from "../decision/budget.js";
import { usdOf } from "../decision/costs.js";
import type { FarSide } from "../sides/far.js";
import type { Policy } from "../decision/policy.js";
import type { PrefixMessage } from "../decision/prefix_memory.js";
import type { SideRecord } from "./side_record.js";
import type { PlainParams } from "../sides/sides.js";

export interface WarmUp {
  readonly params: PlainParams;
  readonly conversation: readonly PrefixMessage[];
  readonly far: FarSide;
  readonly record: SideRecord;
  readonly ledger: Ledger;
  readonly policy: Policy;
  /** In seconds, of any clock that does not go back. */
  readonly now: () => number;
}

/** Does nothing where far is left alone or today's budget is spent. */
export async function warmUp(
  { params, conversation, far, record, ledger, policy, now }: WarmUp,
  signal: AbortSignal,
): Promise<void> {
  if (record.circuit.state !== "closed" || isSpent(policy.budget, ledger.today())) return;
  ledger.add({ requests: 1 });
  let usage: CompletionUsage | null = null;
  try {
    for await (const chunk of far.ask({ params: promptOnly(params), from: null, logprobs: null, signal }))
      usage = chunk.usage ?? usage;
    record.memory.remember(conversation, "", now());
  } catch {
    // Nobody waits for it.
  } finally {
    if (usage !== null) ledger.add({ usd: usdOf(policy.price, usage) });
  }
}

/** The same prompt; a token is the least that a server says, and nothing holds it to a form. */
export function promptOnly(params: PlainParams): PlainParams {
  // One token is no call, so none may be required; without tools it would be another prompt.
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
