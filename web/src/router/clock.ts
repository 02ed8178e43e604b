// The router's one way to time, so that a test need not wait for it.

export interface Clock {
  /** Milliseconds since any moment; it never goes back. */
  now(): number;
  /** Milliseconds since 1970, for what is counted by days. */
  date(): number;
  /** Calls once; the result is what cancels it. */
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
