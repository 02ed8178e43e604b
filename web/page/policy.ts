// The policy that the page routes by: the file that ?policy= names, or its own.

import type { Dialect } from "../src/router/index.js";

/**
 * Near where that is as good, and never an answer lost: an unsure near answer goes on far, and where one side fails the other goes on. A server of
 * OpenAI's parameters alone cannot go on from a text, so it starts anew.
 */
function ownPolicy(dialect: Dialect): unknown {
  return {
    version: 1,
    mode: "auto",
    escalation: { then: dialect === "openai" ? "restart" : "continue", min_mean_logprob: -1.5 },
    timeouts: { hedge_after_ms: 5000 },
  };
}

/** Throws TypeError or SyntaxError where the file cannot be read; what is wrong in it, the router says. */
export async function pagePolicy(dialect: Dialect): Promise<unknown> {
  const address = new URLSearchParams(location.search).get("policy");
  if (address === null) return ownPolicy(dialect);
  // One that was changed counts from the next connection on.
  const response = await fetch(address, { cache: "no-store" });
  if (!response.ok) throw new TypeError(`The policy: ${response.url} answers ${response.status} ${response.statusText}`);
  return response.json();
}
