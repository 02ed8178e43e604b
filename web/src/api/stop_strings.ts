// Ends an answer before its first stop string, or after it. Text that may be the start of a stop string is held back.

export class StopStrings {
  #held = "";
  #stopped = false;

  constructor(
    private readonly stops: readonly string[],
    private readonly include = false,
  ) {}

  /** Whether a stop string was found. No text is returned after it. */
  get stopped(): boolean {
    return this.#stopped;
  }

  /** Returns the text that can no longer be part of a stop string. */
  feed(text: string): string {
    if (this.#stopped) return "";
    const all = this.#held + text;
    const stop = firstStop(all, this.stops);
    this.#stopped = stop !== null;
    const end =
      stop?.[this.include ? "end" : "start"] ??
      all.length - Math.max(0, ...this.stops.map((stop) => overlap(all, stop)));
    this.#held = this.#stopped ? "" : all.slice(end);
    return all.slice(0, end);
  }

  /** Returns the text that is still held back. Call it at the end of the answer. */
  finish(): string {
    const held = this.#held;
    this.#held = "";
    return held;
  }
}

/**
 * Where the stop string is that is complete first, and of those the longest. The result does not depend on how the
 * text is divided into tokens.
 */
function firstStop(text: string, stops: readonly string[]): { readonly start: number; readonly end: number } | null {
  const matches = stops
    .map((stop) => ({ start: text.indexOf(stop), length: stop.length }))
    .filter(({ start }) => start >= 0);
  const end = Math.min(...matches.map(({ start, length }) => start + length));
  const first = matches.filter(({ start, length }) => start + length === end).map(({ start }) => start);
  return first.length === 0 ? null : { start: Math.min(...first), end };
}

/** The length of the longest suffix of ``text`` that is a proper prefix of ``stop``. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (stop.startsWith(text.slice(-length))) return length;
  }
  return 0;
}
