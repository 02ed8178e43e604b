// What an error of a side means for the answer: the error flows in, its kind flows out as the answer machine knows it.

import { DeviceError, NearfarError, RequestError, Unavailable, WorkerError } from "../../errors.js";
import type { Side } from "../decision/decision.js";
import type { FailureKind } from "./events.js";

export interface Failure {
  readonly kind: FailureKind;
  /** To ask the same again may help. */
  readonly retryable: boolean;
  /** How long the side asks to be left alone; null where it does not say. */
  readonly waitMs: number | null;
}

/** What is wrong with the far side however it is asked: near may well answer. */
const OF_THE_SERVER: Readonly<Record<string, FailureKind>> = {
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
  // It has no such model or route, of which the caller knows nothing.
  if (side === "far" && status === 404) return "server";
  if (error instanceof RequestError) return OF_THE_SERVER[String(error.details.code)] ?? "request";
  if (!(error instanceof Unavailable)) return side === "near" ? "device" : "server";
  if (status === 429 || status === 503) return "overloaded";
  return typeof status === "number" || error.details.retryable !== true ? "server" : "connection";
}
