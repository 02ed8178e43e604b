// The pool of KV pages. A page is free, or has users: the sequences and retained sequences that hold it, and the prefix
// cache.

import type { PageGroup } from "../runtime/page_groups.js";

/** The pages of a group, all free at first. */
export class PagePool {
  readonly size: number;
  readonly window: number;
  readonly #users: Uint32Array;
  // A stack: the page freed last is allocated first.
  readonly #free: number[];

  constructor(
    { pages: size, window }: PageGroup,
    private readonly pageSize: number,
  ) {
    this.size = size;
    this.window = window;
    this.#users = new Uint32Array(size);
    this.#free = Array.from({ length: size }, (_, index) => size - 1 - index);
  }

  /** How many pages have no user. */
  get free(): number {
    return this.#free.length;
  }

  /** The number of pages at the start of a sequence that neither the position ``next`` nor later ones read. */
  deadPages(next: number): number {
    return Math.max(0, Math.floor((next - this.window + 1) / this.pageSize));
  }

  /** How many users a page has, including the prefix cache. */
  users(page: number): number {
    return this.#users[page] ?? 0;
  }

  /** A free page, for one user. There must be one. */
  allocate(): number {
    const page = this.#free.pop();
    if (page === undefined) throw new Error("no page is free");
    this.#users[page] = 1;
    return page;
  }

  /** Add a user to a page that has one. */
  share(page: number): void {
    this.#users[page] = this.#requireUsed(page) + 1;
  }

  /** Remove a user; the page is free when it was the last one. */
  release(page: number): void {
    const users = this.#requireUsed(page) - 1;
    this.#users[page] = users;
    if (users === 0) this.#free.push(page);
  }

  #requireUsed(page: number): number {
    const users = this.users(page);
    if (users === 0) throw new Error(`page ${page} has no user`);
    return users;
  }
}
