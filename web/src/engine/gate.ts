// The gate between an engine and its device. Work passes while the gate is open. `close` resolves when no work is in
// progress.

export class Gate {
  #inside = 0;
  #opened: Promise<void> | null = null;
  #open: () => void = () => undefined;
  readonly #whenEmpty: (() => void)[] = [];

  get isClosed(): boolean {
    return this.#opened !== null;
  }

  /** Resolves when the gate is open. */
  async opened(): Promise<void> {
    while (this.#opened !== null) await this.#opened;
  }

  /** Resolves when all work that has passed is done. */
  async close(): Promise<void> {
    this.#opened ??= new Promise((resolve) => (this.#open = resolve));
    if (this.#inside > 0) await new Promise<void>((resolve) => this.#whenEmpty.push(resolve));
  }

  open(): void {
    this.#opened = null;
    this.#open();
  }

  /** Starts the work immediately; the caller checks whether the gate is open. */
  async through<T>(work: () => Promise<T>): Promise<T> {
    this.#inside++;
    try {
      return await work();
    } finally {
      if (--this.#inside === 0) for (const resolve of this.#whenEmpty.splice(0)) resolve();
    }
  }
}
