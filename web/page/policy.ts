// The policy that the page routes by: the file that ?policy= names, the one that was fitted to the demo models if both are there, or the page's own.
// Under each of them a locked message is private.

import { RequestError } from "../src/index.js";
import type { Policy } from "../src/router/decision/policy.js";
import { parsePolicy } from "../src/router/decision/policy.js";
import type { Dialect } from "../src/router/index.js";
import { PRIVATE_PATTERNS } from "./private_patterns.js";
import { DEMO_MODELS, DEMO_POLICY } from "./demo_models.js";

/**
 * Near where that is as good, and never an answer lost: an unsure near answer goes on far, and where one side fails the other goes on. A server of
 * OpenAI's parameters alone cannot go on from a text, so it starts anew.
 */
export function ownPolicy(dialect: Dialect): object {
  return {
    version: 1,
    mode: "auto",
    private: { patterns: Object.values(PRIVATE_PATTERNS) },
    escalation: { then: dialect === "openai" ? "restart" : "continue", min_mean_logprob: -1.5 },
    timeouts: { hedge_after_ms: 5000 },
  };
}

/** The label of locked messages, which the page adds to the private labels of every policy. */
const LOCK = "locked in the page";
/** The most private labels that a policy may have. */
const MAX_LABELS = 100;

/** The policy with the page's label among the private ones. In mode far-only nothing can be private. Throws RequestError for a bad policy. */
export function withLock(json: unknown): Policy {
  const policy = parsePolicy(json);
  const { labels } = policy.private;
  if (policy.mode === "far-only" || labels.length >= MAX_LABELS || labels.includes(LOCK)) return policy;
  return parsePolicy({ ...policy, private: { ...policy.private, labels: [...labels, LOCK] } });
}

/** What makes a message private under a policy of ``withLock``; null if nothing does. */
export function lockLabel({ private: { labels } }: Policy): string | null {
  return labels.includes(LOCK) ? LOCK : (labels[0] ?? null);
}

/** The labels of a message. Throws RequestError for a locked message if the policy sends every message to the server. */
export function labelsOf(policy: Policy, isLocked: boolean): readonly string[] {
  if (!isLocked) return [];
  const label = lockLabel(policy);
  if (label !== null) return [label];
  throw new RequestError(
    "The policy sends every message to the server, so this private one was not sent; start a new chat, or use another policy",
    { code: "private" },
  );
}

/** The policy's address, as the page's address names it; null if it names none. */
export function policyAddress(): string | null {
  return new URLSearchParams(location.search).get("policy");
}

/** Null if the page's address names none. Throws TypeError or SyntaxError if the file cannot be read; the router reports what is wrong in it. */
export async function givenPolicy(): Promise<unknown> {
  const address = policyAddress();
  return address === null ? null : readPolicy(address);
}

/** The page's own, with the predictor of who of the two demo models is right; null for other models. Throws as `givenPolicy`. */
export async function fittedPolicy(near: string | null, far: string | null, dialect: Dialect): Promise<unknown> {
  if (near !== DEMO_MODELS.near || far !== DEMO_MODELS.far) return null;
  const { quality } = (await readPolicy(DEMO_POLICY)) as { readonly quality: unknown };
  return { ...ownPolicy(dialect), quality };
}

/** When the server answers, in words. */
export function policyWords({
  mode,
  quality: { predictor, threshold },
}: Pick<Policy, "mode"> & { readonly quality: { readonly predictor: unknown; readonly threshold: number } }): string {
  switch (mode) {
    case "near-only":
      return "The policy sends no message to it.";
    case "far-only":
      return "The policy sends every message to it, so no message can be private.";
    case "prefer-near":
      return "It answers only if this device cannot, and never a private message.";
    case "prefer-far":
      return "It answers every message that is not private.";
    case "auto":
      break;
    default:
      mode satisfies never;
  }
  if (predictor === null) return "It answers only if that pays, and never a private message.";
  const points = Math.round(100 * threshold);
  const lead =
    points === 0
      ? "if it is the likelier"
      : points > 0
        ? `if it is ahead by more than ${points} points`
        : `unless it is ${-points} points behind`;
  return `The page predicts for every question how likely each side is right, in percent: the server is asked ${lead}, and never for a private message. An answer's details show both.`;
}

async function readPolicy(address: string): Promise<unknown> {
  // A policy that was changed counts from the next connection on. A redirect could lead to another site, which the user has not agreed to.
  const response = await fetch(address, { cache: "no-store", redirect: "manual" });
  if (response.type === "opaqueredirect")
    throw new TypeError(
      `The policy: ${address} answers with a redirect, which is not followed; name the address that it leads to`,
    );
  if (!response.ok)
    throw new TypeError(`The policy: ${response.url} answers ${response.status} ${response.statusText}`);
  return response.json();
}
