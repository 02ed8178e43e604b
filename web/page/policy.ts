// The policy that the page routes by: the file that ?policy= names, the one that was fitted to the demo models where both are there, or the page's own.

import type { Dialect } from "../src/router/index.js";
import { DEMO_MODELS, DEMO_POLICY } from "./demo_models.js";

/**
 * Near where that is as good, and never an answer lost: an unsure near answer goes on far, and where one side fails the other goes on. A server of
 * OpenAI's parameters alone cannot go on from a text, so it starts anew.
 */
export function ownPolicy(dialect: Dialect): object {
  return {
    version: 1,
    mode: "auto",
    escalation: { then: dialect === "openai" ? "restart" : "continue", min_mean_logprob: -1.5 },
    timeouts: { hedge_after_ms: 5000 },
  };
}

/** Null where the page's address names none. Throws TypeError or SyntaxError where the file cannot be read; what is wrong in it, the router says. */
export async function givenPolicy(): Promise<unknown> {
  const address = new URLSearchParams(location.search).get("policy");
  return address === null ? null : readPolicy(address);
}

/** The page's own, with the predictor of who of the two demo models is right; null for other models. Throws as `givenPolicy`. */
export async function fittedPolicy(near: string | null, far: string | null, dialect: Dialect): Promise<unknown> {
  if (near !== DEMO_MODELS.near || far !== DEMO_MODELS.far) return null;
  const { quality } = (await readPolicy(DEMO_POLICY)) as { readonly quality: unknown };
  return { ...ownPolicy(dialect), quality };
}

/** When the server is asked, in words: by a policy without a predictor, or where the predictor sees far ahead by more than ``threshold``, a probability. */
export function policyWords({ predictor, threshold }: { readonly predictor: unknown; readonly threshold: number }): string {
  if (predictor === null) return "It is asked only where that pays, and never for what is private.";
  const points = Math.round(100 * threshold);
  const lead = points === 0 ? "where it is the likelier" : points > 0 ? `where it is ahead by more than ${points} points` : `unless it is ${-points} points behind`;
  return `How likely each side is right, in percent, is predicted for every question: the server is asked ${lead}, and never for what is private. An answer's details show both.`;
}

async function readPolicy(address: string): Promise<unknown> {
  // One that was changed counts from the next connection on.
  const response = await fetch(address, { cache: "no-store" });
  if (!response.ok) throw new TypeError(`The policy: ${response.url} answers ${response.status} ${response.statusText}`);
  return response.json();
}
