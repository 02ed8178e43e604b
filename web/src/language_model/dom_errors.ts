// The exceptions that the Prompt API's specification names, and waiting that a signal ends.

import { NearfarError, messageOf } from "../errors.js";

/** The promise, or the signal's reason as soon as it aborts. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  const settled = new AbortController();
  const aborted = new Promise<never>((_, reject) => {
    const stop = (): void => {
      reject(signal.reason as Error);
    };
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { signal: settled.signal });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    settled.abort();
    promise.catch(() => undefined);
  }
}

/** An engine's error as the exception that the specification names; what is one of those already stays as it is. */
export function domError(error: unknown): unknown {
  if (error instanceof DOMException || error instanceof TypeError || error instanceof RangeError) return error;
  const name = error instanceof NearfarError && error.param === "response_format" ? "NotSupportedError" : "UnknownError";
  return new DOMException(messageOf(error), name);
}

/** Browsers are about to make this a class of its own. */
export function quotaExceeded(requested: number, quota: number): Error {
  const message = `The prompt needs ${requested} tokens, and the context holds ${quota}`;
  type Constructor = new (message: string, options: { readonly requested: number; readonly quota: number }) => Error;
  const native = (globalThis as { readonly QuotaExceededError?: Constructor }).QuotaExceededError;
  return native === undefined ? Object.assign(new DOMException(message, "QuotaExceededError"), { requested, quota }) : new native(message, { requested, quota });
}
