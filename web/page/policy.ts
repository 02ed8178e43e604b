// The policy that the page routes by: the file that ?policy= names, or the policy fitted to the demo models if both are
// present, or the page's own. Under each of them, a locked message is private. The page adds its patterns only to its
// own policies: a policy of a file decides by the patterns in that file.

import { RequestError } from "../src/index.js";
import type { Policy } from "../src/shared/decision/policy.js";
import type { MaskEntity } from "../src/shared/decision/policy_schema.js";
import { parsePolicy } from "../src/shared/decision/policy.js";
import type { Dialect } from "../src/router/index.js";
import { DEMO_MODELS, DEMO_POLICY } from "./demo_models.js";

/**
 * The page's own policy. Near answers if it is as good. The server continues an unsure answer of near, and if one side
 * fails, the other continues. A server that knows only OpenAI's parameters cannot continue a text, so it starts again.
 * What a finder finds (``entities``) is masked.
 */
export function ownPolicy(dialect: Dialect, entities: readonly MaskEntity[] = []): object {
  return {
    version: 1,
    mode: "auto",
    private: { patterns: Object.values(PRIVATE_PATTERNS), ...(entities.length > 0 && { masks: { entities } }) },
    escalation: { then: dialect === "openai" ? "restart" : "continue", min_mean_logprob: -1.5 },
    timeouts: { hedge_after_ms: 5000 },
  };
}

/** The label of locked messages, which the page adds to the private labels of every policy. */
const LOCK = "locked in the page";
/** The most private labels that a policy may have. */
const MAX_LABELS = 100;

/**
 * The policy with the page's label among its private labels. In mode far-only, nothing can be private. Throws
 * RequestError for a bad policy.
 */
export function withLock(json: unknown): Policy {
  const policy = parsePolicy(json);
  const { labels } = policy.private;
  if (policy.mode === "far-only" || labels.length >= MAX_LABELS || labels.includes(LOCK)) return policy;
  return parsePolicy({ ...policy, private: { ...policy.private, labels: [...labels, LOCK] } });
}

/** The label that makes a message private under a policy of ``withLock``; null if no label does. */
export function lockLabel({ private: { labels } }: Policy): string | null {
  return labels.includes(LOCK) ? LOCK : (labels[0] ?? null);
}

/**
 * The labels of a message. Throws RequestError for a locked message if the policy sends every message to the server.
 */
export function labelsOf(policy: Policy, isLocked: boolean): readonly string[] {
  if (!isLocked) return [];
  const label = lockLabel(policy);
  if (label !== null) return [label];
  throw new RequestError(
    "The policy sends every message to the server, so this private one was not sent; start a new chat, " +
      "or use another policy",
    { code: "private" },
  );
}

/** The value of ?policy= in the page's address, or null. */
export function policyAddress(): string | null {
  return new URLSearchParams(location.search).get("policy");
}

/**
 * The policy that the page's address names, not yet checked, or null. Throws TypeError or SyntaxError if the file
 * cannot
 * be read.
 */
export async function givenPolicy(): Promise<unknown> {
  const address = policyAddress();
  return address === null ? null : readPolicy(address);
}

/**
 * The page's ``own`` policy with the predictor that was fitted to the two demo models; null for other models. Throws like
 * `givenPolicy`.
 */
export async function fittedPolicy(near: string | null, far: string | null, own: object): Promise<unknown> {
  if (near !== DEMO_MODELS.near || far !== DEMO_MODELS.far) return null;
  const { quality } = (await readPolicy(DEMO_POLICY)) as { readonly quality: unknown };
  return { ...own, quality };
}

/** Says when the server answers. ``hasNear``: whether this device has a model, or will have one. */
export function policyWords(
  {
    mode,
    quality: { predictor, threshold },
  }: Pick<Policy, "mode"> & { readonly quality: { readonly predictor: unknown; readonly threshold: number } },
  hasNear: boolean,
): string {
  if (mode === "near-only")
    return hasNear
      ? "The policy sends no message to it."
      : "The policy sends no message to it, and this device has no model, so no message is answered.";
  if (mode === "far-only") return "The policy sends every message to it, so no message can be private.";
  if (!hasNear)
    return (
      "It answers every message that is not private, because this device has no model. Private messages " +
      "are not sent, so they are not answered."
    );
  switch (mode) {
    case "prefer-near":
      return "It answers only if this device cannot, and it never receives a private message.";
    case "prefer-far":
      return "It answers every message that is not private.";
    case "auto":
      break;
    default:
      mode satisfies never;
  }
  if (predictor === null)
    return "It answers only if the policy expects a better answer, and it never receives a private message.";
  const points = Math.round(100 * threshold);
  const lead =
    points === 0
      ? "if it is more likely to be right"
      : points > 0
        ? `if it is ahead by more than ${points} points`
        : `unless it is more than ${-points} points behind`;
  return (
    "For every question, the page predicts how likely each side is to be right, in percent. The server " +
    `answers ${lead}, and it never receives a private message. The details of an answer show both ` +
    "numbers."
  );
}

/** Says which messages are private under a policy of ``withLock``. ``isOwn``: whether it is the page's own policy. */
export function privacyWords(policy: Policy, isOwn: boolean): string {
  if (lockLabel(policy) === null) return "";
  const { masks } = policy.private;
  const count = policy.private.patterns.length;
  if (isOwn)
    return (
      "Private messages are those that you lock, and those that contain a card or account number, an identity number, " +
      `an e-mail address or a secret key.${maskWords(masks)}`
    );
  const patterns = count === 1 ? "the pattern" : `one of the ${count} patterns`;
  if (count === 0 && masks === null)
    return "Only messages that you lock are private: this policy does not look for card numbers, e-mail addresses or keys.";
  const matching = count === 0 ? "" : `, and those that match ${patterns} of this policy`;
  return `Private messages are those that you lock${matching}. The page adds no patterns of its own.${maskWords(masks)}`;
}

/** What the server receives in place of private texts. */
function maskWords(masks: Policy["private"]["masks"]): string {
  if (masks === null) return "";
  const finds = masks.entities.length > 0 ? " A model on this device finds more of them." : "";
  const then = {
    mask: " In other messages, the server receives names in brackets in place of private texts.",
    ask: " In other messages, the server receives names in brackets in place of private texts, after you have seen them.",
    near: " Messages with private texts stay here.",
  }[masks.then];
  return `${then}${finds}${masks.strict ? " Each answer shows all that has left." : ""}`;
}

async function readPolicy(address: string): Promise<unknown> {
  // A changed policy applies from the next connection. A redirect could lead to a site that the user has not agreed to.
  const response = await fetch(address, { cache: "no-store", redirect: "manual" });
  if (response.type === "opaqueredirect")
    throw new TypeError(
      `The policy: ${address} answers with a redirect, which is not followed; name the address that it leads to`,
    );
  if (!response.ok)
    throw new TypeError(`The policy: ${response.url} answers ${response.status} ${response.statusText}`);
  return response.json();
}

// The private patterns of the page's own policy: card and account numbers, national identity numbers, e-mail addresses,
// keys. They use the dialect of src/shared/decision/pattern.ts and ignore case. tests/conformance/private_patterns.json
// has examples and counterexamples of each.

export const PRIVATE_PATTERNS: Readonly<Record<string, string>> = {
  "payment card":
    String.raw`(?:^|[^\w.])(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|35[0-9]{2}|` +
    String.raw`6(?:011|4[4-9][0-9]|5[0-9]{2}))(?:[ -]?[0-9]{4}){3}\b`,
  "payment card of 14 or 15 digits":
    String.raw`(?:^|[^\w.])3(?:[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5}|` +
    String.raw`(?:0[0-5]|[68][0-9])[0-9][ -]?[0-9]{6}[ -]?[0-9]{4})\b`,
  IBAN: String.raw`\b[a-z]{2}[0-9]{2} ?(?:(?:[a-z]{4}|[a-z][0-9]{3}) ?)?(?:[0-9]{4} ?){2,6}[0-9a-z]{1,12}\b`,
  "US social security number": String.raw`\b[0-8][0-9]{2}-[0-9]{2}-[0-9]{4}\b`,
  "Canadian social insurance number": String.raw`\b[1-9][0-9]{2}-[0-9]{3}-[0-9]{3}\b`,
  "British national insurance number":
    String.raw`\b[a-ceghj-pr-tw-z][a-ceghj-npr-tw-z]` + String.raw`(?:[0-9]{6}| [0-9]{2} [0-9]{2} [0-9]{2} )[a-d]\b`,
  "French social security number":
    String.raw`\b[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]) ?` + String.raw`(?:[0-9]{2}|2[ab]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}\b`,
  "Italian tax code": String.raw`\b[a-z]{6}[0-9]{2}[a-ehlmprst][0-9]{2}[a-z][0-9]{3}[a-z]\b`,
  "Spanish identity number": String.raw`\b(?:[0-9]{8}|[xyz]-?[0-9]{7})-?[a-hj-np-tv-z]\b`,
  "Swedish personal number": String.raw`\b(?:19|20)?[0-9]{2}(?:0[1-9]|1[0-2])(?:[0-2][0-9]|3[01])[-+][0-9]{4}\b`,
  "Brazilian CPF": String.raw`\b[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}\b`,
  "Indian Aadhaar number": String.raw`(?:^|[^\w. ]|[^0-9] )[2-9][0-9]{3} [0-9]{4} [0-9]{4}(?:$|[^\w ]| $| [^0-9])`,
  "Chinese resident identity number":
    String.raw`\b[1-9][0-9]{5}(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])` + String.raw`(?:[0-2][0-9]|3[01])[0-9]{3}[0-9x]\b`,
  "named identity number":
    String.raw`\b(?:ssn|passport|social security|national (?:id|insurance)|identity card|tax id)` +
    String.raw`(?: (?:number|no\.?))?(?: is)?[:# ]*[a-z]{0,3}[0-9]{6,12}\b`,
  "e-mail address": String.raw`\b[\w.%+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,24}\b`,
  "API key":
    String.raw`\b(?:sk-[\w-]{20}|[srp]k_live_\w{16}|gh[opsur]_\w{30}|github_pat_\w{30}|glpat-[\w-]{20}|` +
    String.raw`xox[abeoprs]-[\w-]{10}|hf_\w{30}|npm_\w{36}|AIza[\w-]{35})`,
  "AWS access key": String.raw`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`,
  "JSON web token": String.raw`\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.`,
  "private key": String.raw`-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----`,
};
