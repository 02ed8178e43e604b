// A streamed answer, as the openai package returns it. Iterate it once. Leaving the loop, or aborting the controller,
// ends the generation.

import { RequestError } from "../errors.js";

export class Stream<T> implements AsyncIterable<T> {
  readonly controller = new AbortController();
  #consumed = false;

  /**
   * ``start`` is called when the iteration starts, so a stream that nobody reads generates nothing. The iteration
   * returns what a generator returns.
   */
  constructor(private readonly start: (signal: AbortSignal) => AsyncIterable<T, unknown>) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<T, unknown, undefined> {
    if (this.#consumed) throw new RequestError("The stream was iterated before; a streamed answer can be read once");
    this.#consumed = true;
    const { signal } = this.controller;
    try {
      return yield* this.start(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
      return undefined;
    }
  }
}

/** A signal that aborts with any of the defined ones. */
export function anySignal(...signals: readonly (AbortSignal | null | undefined)[]): AbortSignal {
  return AbortSignal.any(signals.filter((signal) => signal !== null && signal !== undefined));
}
