// The exceptions that the Prompt API's specification names.

import { NearfarError, messageOf } from "../errors.js";

/** Converts an engine's error to an exception of the specification. Such exceptions are returned unchanged. */
export function domError(error: unknown): unknown {
  if (error instanceof DOMException || error instanceof TypeError || error instanceof RangeError) return error;
  const isUnsupported =
    error instanceof NearfarError &&
    (["response_format", "enable_thinking"].includes(error.param ?? "") || "missing" in error.details);
  const name = isUnsupported ? "NotSupportedError" : "UnknownError";
  return new DOMException(messageOf(error), name);
}

/** Browsers are introducing a class of its own for this error. */
export function quotaExceeded(requested: number, quota: number): Error {
  const message = `The prompt needs ${requested} tokens, and the context holds ${quota}`;
  type Constructor = new (message: string, options: { readonly requested: number; readonly quota: number }) => Error;
  const native = (globalThis as { readonly QuotaExceededError?: Constructor }).QuotaExceededError;
  return native === undefined
    ? Object.assign(new DOMException(message, "QuotaExceededError"), { requested, quota })
    : new native(message, { requested, quota });
}
