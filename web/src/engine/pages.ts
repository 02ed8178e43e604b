// Pages: a cache kind for keys and values, of layers with or without a window.

import type { PageGroup, SequenceSizes } from "../runtime/page_groups.js";
import { pagesOfSequence } from "../runtime/page_groups.js";
import type { CacheKind, Holder, Node, Prefix } from "./cache_kind.js";
import { Units } from "./cache_kind.js";

/** The pages of one sequence, in the order of the positions they hold. */
export class PageTable {
  /** The entry of a page that was given back is 0, and is never read. */
  readonly pages: number[];

  /** The first ``dead`` pages were given back because they lie behind the window. */
  constructor(public dead = 0) {
    this.pages = new Array<number>(dead).fill(0);
  }

  /** The pages that the sequence holds. */
  get live(): readonly number[] {
    return this.pages.slice(this.dead);
  }
}

/** The pages of a sequence in each page group. */
export function pageTables({ tables }: Holder): readonly PageTable[] {
  // Not by its class: the script that drafts tokens has a class of its own.
  return tables.filter((table) => "pages" in table);
}

/** The pages of a page group, the cache kind ``index``. */
export class Pages extends Units implements CacheKind {
  readonly isChain: boolean;
  readonly isExact = false;
  readonly #window: number;
  readonly #pageSize: number;
  readonly #most: number;

  constructor(index: number, group: PageGroup, sizes: SequenceSizes) {
    super(index, group.pages);
    this.isChain = group.window === Infinity;
    this.#window = group.window;
    this.#pageSize = sizes.pageSize;
    this.#most = pagesOfSequence(group, sizes);
  }

  table(): PageTable {
    return new PageTable();
  }

  unread(length: number): number {
    return Math.max(0, Math.floor((length - this.#window + 1) / this.#pageSize));
  }

  growth(holder: Holder, length: number): number {
    const { pages, dead } = this.#table(holder);
    return this.#growth(pages.length, dead, length);
  }

  admission({ path, length: start }: Prefix, length: number): number {
    const dead = this.unread(start);
    const idle = path.slice(dead).filter((node) => this.idle.has(this.snapshotOf(node) ?? -1)).length;
    return this.#growth(path.length, dead, length) + idle;
  }

  missing(holder: Holder, start: number, length: number): number {
    const { pages } = this.#table(holder);
    return (this.#isShared(pages, start) ? 1 : 0) + Math.max(0, this.#pagesFor(length) - pages.length);
  }

  reserve(holder: Holder, start: number, length: number): void {
    const { pages } = this.#table(holder);
    if (this.#isShared(pages, start)) {
      const index = Math.floor(start / this.#pageSize);
      const shared = pages[index] ?? -1;
      const own = this.allocate();
      pages[index] = own;
      this.copies.push([shared, own]);
      this.release(shared);
    }
    while (pages.length < this.#pagesFor(length)) pages.push(this.allocate());
  }

  trim(holder: Holder, length: number): void {
    const table = this.#table(holder);
    const dead = Math.min(this.unread(length), table.pages.length);
    for (; table.dead < dead; table.dead++) {
      this.release(table.pages[table.dead] ?? -1);
      table.pages[table.dead] = 0;
    }
  }

  rewind(holder: Holder, length: number): number {
    const { pages } = this.#table(holder);
    while (pages.length > this.#pagesFor(length)) this.release(pages.pop() ?? -1);
    return length;
  }

  drop(holder: Holder): void {
    const table = this.#table(holder);
    const cached = table.live.filter((page) => this.nodes.has(page));
    // The last page of a chain is evicted first, so it becomes idle first.
    if (this.isChain) cached.reverse();
    for (const page of [...cached, ...table.live.filter((own) => !this.nodes.has(own))]) this.release(page);
    table.pages.length = 0;
    table.dead = 0;
  }

  /** If the node has a snapshot already, the holder uses that. */
  snapshot(holder: Holder, node: Node, index: number): void {
    const { pages, dead } = this.#table(holder);
    const page = pages[index] ?? -1;
    const cached = this.snapshotOf(node);
    if (index < dead || cached === page) return;
    if (cached === null) {
      this.cache(page, node);
    } else {
      this.use(cached);
      this.release(page);
      pages[index] = cached;
    }
  }

  restore(holder: Holder, { path, length }: Prefix): void {
    const table = this.#table(holder);
    const dead = this.unread(length);
    const held = table.pages.length;
    this.trim(holder, length);
    table.dead = Math.max(dead, table.dead);
    path.slice(held).forEach((node, index) => {
      const page = held + index < dead ? 0 : (this.snapshotOf(node) ?? -1);
      table.pages.push(page);
      if (held + index >= dead) this.use(page);
    });
  }

  /** The node that shares the holder's page ``index``. */
  nodeOf(holder: Holder, index: number): Node | undefined {
    return this.nodes.get(this.#table(holder).pages[index] ?? -1);
  }

  #table({ tables }: Holder): PageTable {
    return (tables[this.index] as PageTable | undefined) ?? new PageTable();
  }

  #pagesFor(length: number): number {
    return Math.ceil(length / this.#pageSize);
  }

  #growth(held: number, dead: number, length: number): number {
    return Math.max(0, Math.min(this.#pagesFor(length) - dead, this.#most) - held + dead);
  }

  #isShared(pages: readonly number[], position: number): boolean {
    return this.users(pages[Math.floor(position / this.#pageSize)]) > 1;
  }
}
