// The router's only access to time, so that tests need not wait.

import { Unavailable } from "../../errors.js";

export interface Clock {
  /** Milliseconds since any moment; it never goes back. */
  now(): number;
  /** Milliseconds since 1970, for counting by days. */
  date(): number;
  /** Calls ``then`` once; the result cancels it. */
  after(milliseconds: number, then: () => void): () => void;
}

export const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  date: () => Date.now(),
  after: (milliseconds, then) => {
    const timer = setTimeout(then, milliseconds);
    return () => {
      clearTimeout(timer);
    };
  },
};

/** Aborts the signal with Unavailable after ``milliseconds``. */
export async function withTimeout<T>(
  clock: Clock,
  milliseconds: number,
  run: (signal: AbortSignal) => Promise<T>,
  who = "The far side",
): Promise<T> {
  const controller = new AbortController();
  const cancel = clock.after(milliseconds, () => {
    controller.abort(
      new Unavailable(`${who} did not answer within ${milliseconds} ms; try again, or raise the policy's timeouts`, {
        retryable: true,
      }),
    );
  });
  try {
    return await run(controller.signal);
  } finally {
    cancel();
  }
}
