// The pool of KV pages: who uses which. A page is free, or has one or more users: sequences, kept sequences and the prefix cache.

export class PagePool {
  readonly #users: Uint32Array;
  // The last one freed is the first one taken again.
  readonly #free: number[];

  constructor(readonly size: number) {
    this.#users = new Uint32Array(size);
    this.#free = Array.from({ length: size }, (_, index) => size - 1 - index);
  }

  /** How many pages nobody uses. */
  get free(): number {
    return this.#free.length;
  }

  /** How many use a page. */
  users(page: number): number {
    return this.#users[page] ?? 0;
  }

  /** A free page, which then has one user. There must be one. */
  take(): number {
    const page = this.#free.pop();
    if (page === undefined) throw new Error("no page is free");
    this.#users[page] = 1;
    return page;
  }

  /** One more user for a page that has one. */
  share(page: number): void {
    this.#users[page] = this.requireUsed(page) + 1;
  }

  /** One user less; without users the page is free. */
  release(page: number): void {
    const users = this.requireUsed(page) - 1;
    this.#users[page] = users;
    if (users === 0) this.#free.push(page);
  }

  private requireUsed(page: number): number {
    const users = this.users(page);
    if (users === 0) throw new Error(`page ${page} has no user`);
    return users;
  }
}
