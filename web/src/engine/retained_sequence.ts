// A retained sequence: the pages of a conversation between two answers. With them the next answer needs no prefill for
// the conversation so far, not even for the last, partly filled page. The pages are retained until another sequence
// needs them; without them the tokens are computed again.

import type { PageTable } from "./page_table.js";

export class RetainedSequence {
  #tokens: readonly number[] = [];
  #tables: readonly PageTable[] = [];
  #adapter = "";

  /** The tokens whose keys and values the pages hold. */
  get tokens(): readonly number[] {
    return this.#tokens;
  }

  /** Its page table in each group; none if it holds no pages. */
  get tables(): readonly PageTable[] {
    return this.#tables;
  }

  /** The id of the adapter that computed the pages; "" for none. */
  get adapter(): string {
    return this.#adapter;
  }

  /** Accept the tables of pages that hold ``tokens``. The caller does not use the tables afterwards. */
  put(tokens: readonly number[], tables: readonly PageTable[], adapter = ""): void {
    this.drop();
    this.#adapter = adapter;
    this.#tokens = tokens;
    this.#tables = tables;
  }

  /** Pass the tables of the first ``count`` pages to the caller, and release the other pages. */
  detach(count: number): readonly PageTable[] {
    const tables = this.#tables;
    for (const table of tables) table.truncate(count);
    this.#tokens = [];
    this.#tables = [];
    return tables;
  }

  /** Release the pages. */
  drop(): void {
    this.detach(0);
  }

  /**
   * A second retained sequence on the same pages. The first sequence that writes to a shared page gets a copy of it.
   */
  clone(): RetainedSequence {
    const clone = new RetainedSequence();
    clone.put(
      this.#tokens,
      this.#tables.map((table) => table.clone()),
      this.#adapter,
    );
    return clone;
  }
}
