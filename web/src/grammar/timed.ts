// A constraint with a time limit for its masks, because they are computed on the thread that does everything else.

import { RequestError } from "../errors.js";
import type { GrammarConstraint } from "./constraint.js";

const BUDGET_MS = 10_000;
const BUDGET_MS_PER_TOKEN = 20;

export class TimedConstraint implements GrammarConstraint {
  #usedMs = 0;
  #tokens = 0;

  constructor(
    private readonly inner: GrammarConstraint,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** Throws RequestError if the answer has used up its time, and what the constraint throws. */
  mask(): Int32Array<ArrayBuffer> | null {
    return this.timed(() => this.inner.mask());
  }

  /** Throws as `mask` does. */
  accept(tokenId: number): void {
    this.#tokens++;
    this.timed(() => {
      this.inner.accept(tokenId);
    });
  }

  get needed(): number | undefined {
    return this.inner.needed;
  }

  spend(tokens: number): void {
    this.inner.spend?.(tokens);
  }

  get finished(): boolean {
    return this.timed(() => this.inner.finished);
  }

  get complete(): boolean {
    return this.inner.complete;
  }

  dispose(): void {
    this.inner.dispose();
  }

  private timed<T>(call: () => T): T {
    const started = this.now();
    const result = call();
    this.#usedMs += this.now() - started;
    if (this.#usedMs <= BUDGET_MS + BUDGET_MS_PER_TOKEN * this.#tokens) return result;
    throw new RequestError(
      `The grammar is too slow: after ${this.#tokens} tokens it has used all of its time (${BUDGET_MS / 1000} ` +
        `seconds and ${BUDGET_MS_PER_TOKEN} ms for each token); write it with less ambiguity`,
      { tokens: this.#tokens },
    );
  }
}
