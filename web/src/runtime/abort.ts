// Waiting that an AbortSignal can end, even where the awaited work itself cannot be cancelled.

export interface AbortHandling<T> {
  /** Called with the promise's value if it arrives after the abort, to free it. */
  readonly discard?: (value: T) => void;
  /** How long after the abort the promise may still settle by itself, in milliseconds; 0 by default. */
  readonly graceMs?: number;
}

/** Waits for the promise. Throws the signal's reason as soon as it aborts; the promise's later outcome is discarded. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined, { discard, graceMs = 0 }: AbortHandling<T> = {}): Promise<T> {
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
