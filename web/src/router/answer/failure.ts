// Converts an error of a side to an event of the answer machine.

import { DeviceError, NearfarError, RequestError, Unavailable, WorkerError } from "../../errors.js";
import type { Side } from "../../shared/decision/decision.js";
import type { FailureKind } from "../../shared/router/events.js";

export interface Failure {
  readonly kind: FailureKind;
  /** The same request may succeed if it is sent again. */
  readonly retryable: boolean;
  /** The wait that the side requires (Retry-After); null if it gives none. */
  readonly waitMs: number | null;
}

/** The server, or a proxy in front of it, is overloaded. */
const OVERLOADED: readonly unknown[] = [429, 503, 529];

/** Errors that every request to the far side would get, so near may well answer. */
const SERVER_FAULTS: Readonly<Record<string, FailureKind>> = {
  wrong_key: "unauthorized",
  api_version: "server",
  unknown_model: "server",
};

export function failureOf(side: Side, error: unknown): Failure {
  if (!(error instanceof NearfarError))
    return { kind: side === "near" ? "device" : "server", retryable: false, waitMs: null };
  const { status, retryable, retryAfterMs } = error.details;
  return {
    kind: kindOf(side, error, status),
    retryable: retryable === true,
    waitMs: typeof retryAfterMs === "number" ? retryAfterMs : null,
  };
}

function kindOf(side: Side, error: NearfarError, status: unknown): FailureKind {
  if (error instanceof DeviceError || error instanceof WorkerError) return "device";
  // The server does not have this model or route. The caller did not choose them, so the request is not to blame.
  if (side === "far" && status === 404) return "server";
  if (error instanceof RequestError) return SERVER_FAULTS[String(error.details.code)] ?? "request";
  if (!(error instanceof Unavailable)) return side === "near" ? "device" : "server";
  if (OVERLOADED.includes(status)) return "overloaded";
  return typeof status === "number" || error.details.retryable !== true ? "server" : "connection";
}
