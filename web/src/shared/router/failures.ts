// Failures: what the error of a side means to the answer machine, whether and when that side is asked again, and the
// error of an answer that no side reported.

import { RequestError, Unavailable } from "../../errors.js";
import type { Side } from "../decision/decision.js";
import type { State } from "./answer_machine.js";
import type { Fail, FailureKind } from "./events.js";

/** An error of a side, in whichever language it was raised: its name and its details, of which these matter here. */
export interface SideError {
  /** Such as "request_error"; left out for an error that is not one of ours. */
  readonly error?: string;
  /** The HTTP status of the side's answer. */
  readonly status?: unknown;
  /** Such as "wrong_key". */
  readonly code?: unknown;
  /** true: the same request may succeed if it is sent again. */
  readonly retryable?: unknown;
  /** The wait that the side requires (Retry-After). */
  readonly retry_after_ms?: unknown;
}

export interface Failure {
  readonly kind: FailureKind;
  readonly retryable: boolean;
  /** The wait before the side is asked again. */
  readonly wait_ms: number;
}

/** The server, or a proxy in front of it, is overloaded. */
const OVERLOADED: readonly unknown[] = [429, 503, 529];
/** Errors that every request to the far side would get now, so near may well answer. */
const FAR_FAULTS: ReadonlyMap<unknown, FailureKind> = new Map<unknown, FailureKind>([
  ["wrong_key", "unauthorized"],
  ["api_version", "server"],
  ["unknown_model", "server"],
  ["budget", "overloaded"],
]);
/** The wait before a second attempt is between half of this and all of it. It doubles with each further attempt. */
const RETRY_MS = 100;

/**
 * ``random``: from 0 to 1, so that requests that failed together do not return together. A side that requires a longer
 * wait than the policy gives its first token is not asked again. Before the start, near fails its first attempt.
 */
export function failureOf(side: Side, error: SideError, { rules, [side]: status }: State, random: number): Failure {
  const fault = side === "far" ? FAR_FAULTS.get(error.code) : undefined;
  const kind = fault ?? kindOf(side, error);
  const required = typeof error.retry_after_ms === "number" ? error.retry_after_ms : 0;
  return {
    kind,
    retryable:
      fault === undefined &&
      (kind === "connection" || kind === "overloaded" || kind === "server") &&
      error.retryable === true &&
      required < rules[`${side}_first_token_ms`],
    wait_ms: Math.max(RETRY_MS * 2 ** (Math.max(1, status.tries) - 1) * (0.5 + random / 2), required),
  };
}

function kindOf(side: Side, { error, status, retryable }: SideError): FailureKind {
  if (status === 401 || status === 403) return "unauthorized";
  // The server does not have this model or route. The client did not choose them, so the request is not to blame.
  if (side === "far" && status === 404) return "server";
  if (error === "request_error") return "request";
  if (error === "queue_full" || OVERLOADED.includes(status)) return "overloaded";
  if (side === "near") return error === "unavailable" ? "overloaded" : "device";
  return retryable === true && typeof status !== "number" ? "connection" : "server";
}

/** The error of a side whose answer is incomplete. */
export function stopped(side: Side): Unavailable {
  return new Unavailable(`${side}: its answer stopped before the end; try again`, { retryable: true });
}

/** The error of a far side that has nothing left of today's budget when it is to take over. */
export function budgetSpent(): Unavailable {
  return new Unavailable("far: today's budget for it is spent", { code: "budget" });
}

/** The error of a far side that would have to continue a private text of near's. */
export function privateText(): RequestError {
  return new RequestError("near's text is private, so it does not leave this device", { code: "private" });
}

/** Throws the error of a side that no side has reported. */
export function sideFault(name: "stopped" | "budgetSpent" | "privateText", side: Side): never {
  throw { stopped, budgetSpent, privateText }[name](side);
}

/** The error of an answer whose last failure is not an error of a side: a side was late, or none may answer. */
export function failError({ side, reason }: Pick<Fail, "side" | "reason">, { rules }: State): Unavailable {
  const message =
    side === null
      ? `nobody can answer: ${reason}`
      : `${side}: no token came in time (the policy allows ${rules[`${side}_first_token_ms`]} ms for the first, ` +
        `${rules.between_tokens_ms} ms between two); try again, or allow more time`;
  return new Unavailable(message, { code: reason });
}
