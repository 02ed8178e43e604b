// Waits that an AbortSignal can end, even if the awaited work itself cannot be cancelled.

/**
 * Waits for the promise. Throws the signal's reason as soon as it aborts, or ``graceMs`` milliseconds later; within
 * this time the promise may still settle. ``discard`` frees a value that arrives after the abort.
 */
export async function unlessAborted<T>(
  promise: Promise<T>,
  signal: AbortSignal | undefined,
  discard?: (value: T) => void,
  graceMs = 0,
): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise<T>((resolve, reject) => {
    const end = (): void => {
      reject(signal.reason as Error);
    };
    const abort = (): void => {
      if (graceMs === 0) end();
      else setTimeout(end, graceMs);
    };
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort);
    promise
      .then((value) => {
        if (!signal.aborted) resolve(value);
        else {
          discard?.(value);
          end();
        }
      })
      .catch((error: unknown) => {
        reject((signal.aborted ? signal.reason : error) as Error);
      })
      .finally(() => {
        signal.removeEventListener("abort", abort);
      });
  });
}

/** Resolves after ``ms`` milliseconds. Throws the signal's reason as soon as it aborts. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await unlessAborted(new Promise((resolve) => setTimeout(resolve, ms)), signal);
}
