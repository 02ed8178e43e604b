// Names that the browser keeps beyond the page: in sessionStorage for this tab and its reloads, in localStorage for all
// tabs. Where the browser keeps nothing, they last until the page is left.

export class KeptNames {
  #names: ReadonlySet<string> = new Set();

  constructor(
    private readonly key: string,
    private readonly storage: () => Storage,
  ) {}

  /** Read each time, because another tab may have changed them. */
  get names(): ReadonlySet<string> {
    try {
      const stored: unknown = JSON.parse(this.storage().getItem(this.key) ?? "[]");
      if (Array.isArray(stored)) this.#names = new Set(stored.filter((name) => typeof name === "string"));
    } catch {
      // The browser keeps nothing, or something else.
    }
    return this.#names;
  }

  add(...names: readonly string[]): void {
    this.keep(new Set([...this.names, ...names]));
  }

  delete(name: string): void {
    this.keep(new Set([...this.names].filter((other) => other !== name)));
  }

  private keep(names: ReadonlySet<string>): void {
    this.#names = names;
    try {
      this.storage().setItem(this.key, JSON.stringify([...names]));
    } catch {
      // As above.
    }
  }
}
