// A retained sequence: the pages of a conversation between two answers. With them the next answer needs no prefill for
// the conversation so far, not even for the last, partly filled page. The pages are retained until another sequence
// needs them; without them the tokens are computed again.

import type { PagePool } from "./page_pool.js";

export class RetainedSequence {
  #tokens: readonly number[] = [];
  #pages: number[] = [];

  constructor(private readonly pool: PagePool) {}

  /** The tokens whose keys and values the pages hold. */
  get tokens(): readonly number[] {
    return this.#tokens;
  }

  get pages(): readonly number[] {
    return this.#pages;
  }

  /** Accept pages that hold ``tokens``. The caller must be a user of each page, and is not a user afterwards. */
  put(tokens: readonly number[], pages: readonly number[]): void {
    this.drop();
    this.#tokens = tokens;
    this.#pages = [...pages];
  }

  /** Pass the first ``count`` pages to the caller, and release the others. */
  detach(count: number): number[] {
    const pages = this.#pages.splice(0, count);
    this.drop();
    return pages;
  }

  /** Release the pages. */
  drop(): void {
    for (const page of this.#pages.splice(0)) this.pool.release(page);
    this.#tokens = [];
  }

  /**
   * A second retained sequence on the same pages. The first sequence that writes to a shared page gets a copy of it.
   */
  clone(): RetainedSequence {
    const clone = new RetainedSequence(this.pool);
    for (const page of this.#pages) this.pool.share(page);
    clone.put(this.#tokens, this.#pages);
    return clone;
  }
}
