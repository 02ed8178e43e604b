// A page table: the pages of one sequence in one pool, in the order of the positions they hold.

import type { PagePool } from "./page_pool.js";

export class PageTable {
  /** The entry of a page that was given back is 0, and is never read. */
  readonly pages: number[];

  /** A table that owns the pages ``live``. The ``dead`` pages before them were given back. */
  constructor(
    readonly pool: PagePool,
    live: readonly number[] = [],
    public dead = 0,
  ) {
    this.pages = [...new Array<number>(dead).fill(0), ...live];
  }

  /** The pages that the sequence holds. */
  get live(): readonly number[] {
    return this.pages.slice(this.dead);
  }

  /** Give back the first ``count`` pages, which lie behind the window. */
  giveBack(count: number): void {
    for (; this.dead < count; this.dead++) {
      this.pool.release(this.pages[this.dead] ?? -1);
      this.pages[this.dead] = 0;
    }
  }

  /** Continue with the pages of a longer prefix, as another user of them. Its first ``dead`` entries are given back. */
  extend(pages: readonly number[], dead: number): void {
    const held = this.pages.length;
    this.giveBack(Math.min(dead, held));
    this.dead = Math.max(dead, this.dead);
    this.pages.push(...pages.slice(held));
    for (const page of pages.slice(Math.max(held, dead))) this.pool.share(page);
  }

  /** Release all pages after the first ``count``. */
  truncate(count: number): void {
    for (const page of this.pages.splice(Math.max(count, this.dead))) this.pool.release(page);
    this.pages.length = count;
    this.dead = Math.min(this.dead, count);
  }

  /** A second table of the same pages. */
  clone(): PageTable {
    const clone = new PageTable(this.pool);
    clone.extend(this.pages, this.dead);
    return clone;
  }
}
