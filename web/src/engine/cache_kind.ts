// A cache kind: one kind of memory that a model keeps of each sequence from step to step. Scheduler and prefix cache have
// a list of kinds, treat them alike, and use only the members of `CacheKind`. Today all are `Pages`: keys and values in
// pages, of layers with or without a window. A page is free, or has users: the sequences that hold it, and the prefix
// cache. A state that cannot go back has other snapshots: copies at the ends of some nodes.

import type { PageGroup, SequenceSizes } from "../runtime/page_groups.js";
import { pagesOfSequence } from "../runtime/page_groups.js";

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

/** A sequence. ``tables`` are what it holds of each kind. */
export interface Holder {
  readonly tables: readonly PageTable[];
}

export type Level = Map<string, Node>;

/**
 * The tokens of a page in the prefix cache, which follow those of ``parent``, and by kind the snapshot at their end;
 * null without it. ``siblings`` all follow ``parent``.
 */
export interface Node {
  readonly key: string;
  readonly tokens: readonly number[];
  readonly parent: Node | null;
  readonly siblings: Level;
  readonly children: Level;
  readonly snapshots: (number | null)[];
}

/** The nodes of ``path`` have snapshots of the first ``length`` tokens of a sequence. */
export interface Prefix {
  readonly length: number;
  readonly path: readonly Node[];
}

/** The pages of the page group ``index``, all free at first. */
export class Pages {
  readonly size: number;
  /** Whether a prefix needs the snapshots of all its nodes; otherwise only the last ones are read. */
  readonly isChain: boolean;
  /** The nodes by their snapshot, if only the prefix cache uses that; the one not used for longest is first. */
  readonly idle = new Map<number, Node>();
  /** Pages to copy on the device before the next step. */
  copies: [from: number, to: number][] = [];
  readonly #users: Uint32Array;
  /** The nodes of the pages that the prefix cache uses. */
  readonly #nodes = new Map<number, Node>();
  // A stack: the page freed last is allocated first.
  readonly #free: number[];
  readonly #window: number;
  readonly #pageSize: number;
  readonly #most: number;

  constructor(
    private readonly index: number,
    group: PageGroup,
    sizes: SequenceSizes,
  ) {
    this.size = group.pages;
    this.isChain = group.window === Infinity;
    this.#window = group.window;
    this.#pageSize = sizes.pageSize;
    this.#most = pagesOfSequence(group, sizes);
    this.#users = new Uint32Array(this.size);
    this.#free = Array.from({ length: this.size }, (_, index) => this.size - 1 - index);
  }

  /** How many pages have no user. */
  get free(): number {
    return this.#free.length;
  }

  /** How many users a page has, including the prefix cache. */
  users(page: number | undefined): number {
    return this.#users[page ?? -1] ?? 0;
  }

  /** How many nodes at the start of a prefix are not read by a sequence that continues after ``length`` tokens. */
  unread(length: number): number {
    return Math.max(0, Math.floor((length - this.#window + 1) / this.#pageSize));
  }

  /** How many more pages a holder can need for ``length`` tokens. */
  growth(holder: Holder, length: number): number {
    const { pages, dead } = this.#table(holder);
    return this.#growth(pages.length, dead, length);
  }

  /** The same for a sequence that starts from a prefix, with the pages that must not be evicted for it. */
  admission({ path, length: start }: Prefix, length: number): number {
    const dead = this.unread(start);
    const idle = path.slice(dead).filter(({ snapshots }) => this.idle.has(snapshots[this.index] ?? -1)).length;
    return this.#growth(path.length, dead, length) + idle;
  }

  /** How many pages `reserve` allocates. */
  missing(holder: Holder, start: number, length: number): number {
    const { pages } = this.#table(holder);
    return (this.#isShared(pages, start) ? 1 : 0) + Math.max(0, this.#pagesFor(length) - pages.length);
  }

  /** Let a holder write its positions from ``start`` up to ``length``. The pages must be free. */
  reserve(holder: Holder, start: number, length: number): void {
    const { pages } = this.#table(holder);
    if (this.#isShared(pages, start)) {
      const index = Math.floor(start / this.#pageSize);
      const shared = pages[index] ?? -1;
      const own = this.#allocate();
      pages[index] = own;
      this.copies.push([shared, own]);
      this.#release(shared);
    }
    while (pages.length < this.#pagesFor(length)) pages.push(this.#allocate());
  }

  /** Release what no position from ``length`` on reads. */
  trim(holder: Holder, length: number): void {
    const table = this.#table(holder);
    const dead = Math.min(this.unread(length), table.pages.length);
    for (; table.dead < dead; table.dead++) {
      this.#release(table.pages[table.dead] ?? -1);
      table.pages[table.dead] = 0;
    }
  }

  /** Release everything. */
  drop(holder: Holder): void {
    const table = this.#table(holder);
    const cached = table.live.filter((page) => this.#nodes.has(page));
    // The last page of a chain is evicted first, so it becomes idle first.
    if (this.isChain) cached.reverse();
    for (const page of [...cached, ...table.live.filter((own) => !this.#nodes.has(own))]) this.#release(page);
    table.pages.length = 0;
    table.dead = 0;
  }

  /** Retain the holder's page ``index`` in a node. If the node has a snapshot already, the holder uses that. */
  snapshot(holder: Holder, node: Node, index: number): void {
    const { pages, dead } = this.#table(holder);
    const page = pages[index] ?? -1;
    const cached = node.snapshots[this.index] ?? null;
    if (index < dead || cached === page) return;
    this.#use(cached ?? page);
    if (cached === null) {
      node.snapshots[this.index] = page;
      this.#nodes.set(page, node);
    } else {
      this.#release(page);
      pages[index] = cached;
    }
  }

  /** Let a holder of fewer tokens continue after a prefix in the cache. */
  restore(holder: Holder, { path, length }: Prefix): void {
    const table = this.#table(holder);
    const dead = this.unread(length);
    const held = table.pages.length;
    this.trim(holder, length);
    table.dead = Math.max(dead, table.dead);
    path.slice(held).forEach(({ snapshots }, index) => {
      const page = held + index < dead ? 0 : (snapshots[this.index] ?? -1);
      table.pages.push(page);
      if (held + index >= dead) this.#use(page);
    });
  }

  /** The node that shares the holder's page ``index``. */
  nodeOf(holder: Holder, index: number): Node | undefined {
    return this.#nodes.get(this.#table(holder).pages[index] ?? -1);
  }

  /** Remove a node's snapshot, if it has one. */
  forget(node: Node): void {
    const page = node.snapshots[this.index] ?? null;
    if (page === null) return;
    node.snapshots[this.index] = null;
    this.#nodes.delete(page);
    this.idle.delete(page);
    this.#release(page);
  }

  #table({ tables }: Holder): PageTable {
    return tables[this.index] ?? new PageTable();
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

  /** A free page, for one user. There must be one. */
  #allocate(): number {
    const page = this.#free.pop();
    if (page === undefined) throw new Error("no page is free");
    this.#users[page] = 1;
    return page;
  }

  /** Add a user to a page that has one. */
  #use(page: number): void {
    this.#users[page] = this.#requireUsed(page) + 1;
    this.idle.delete(page);
  }

  /** Remove a user; the page is free when it was the last one. */
  #release(page: number): void {
    const users = this.#requireUsed(page) - 1;
    this.#users[page] = users;
    const node = this.#nodes.get(page);
    if (users === 0) this.#free.push(page);
    else if (users === 1 && node !== undefined) this.idle.set(page, node);
  }

  #requireUsed(page: number): number {
    const users = this.users(page);
    if (users === 0) throw new Error(`page ${page} has no user`);
    return users;
  }
}

export type CacheKind = Omit<Pages, "size" | "users">;
