// The pool of KV pages. A page is free, or has users: the sequences and kept sequences that hold it, and the prefix cache.

/** ``size`` pages, all free at first. */
export class PagePool {
  readonly #users: Uint32Array;
  readonly #cached: Uint8Array;
  // A stack: the page freed last is allocated first.
  readonly #free: number[];
  #idle = 0;

  constructor(readonly size: number) {
    this.#users = new Uint32Array(size);
    this.#cached = new Uint8Array(size);
    this.#free = Array.from({ length: size }, (_, index) => size - 1 - index);
  }

  /** How many pages have no user. */
  get free(): number {
    return this.#free.length;
  }

  /** How many pages only the prefix cache uses. */
  get idle(): number {
    return this.#idle;
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
    const users = this.requireUsed(page);
    this.#users[page] = users + 1;
    if (users === 1 && this.#cached[page] === 1) this.#idle--;
  }

  /** Remove a user; the page is free when it was the last one. */
  release(page: number): void {
    const users = this.requireUsed(page) - 1;
    this.#users[page] = users;
    if (users === 0) this.#free.push(page);
    else if (users === 1 && this.#cached[page] === 1) this.#idle++;
  }

  /** Add the prefix cache to the users of a page that a sequence holds. */
  retain(page: number): void {
    this.share(page);
    this.#cached[page] = 1;
  }

  /** Remove the prefix cache from the users of a page. */
  drop(page: number): void {
    this.#cached[page] = 0;
    if (this.users(page) === 1) this.#idle--;
    this.release(page);
  }

  private requireUsed(page: number): number {
    const users = this.users(page);
    if (users === 0) throw new Error(`page ${page} has no user`);
    return users;
  }
}
