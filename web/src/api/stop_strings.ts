// Stop strings: an answer's text flows in as it comes, the text before the first stop string flows out. What may still become one is held back.

export class StopStrings {
  #held = "";
  #stopped = false;

  constructor(private readonly stops: readonly string[]) {}

  /** Whether a stop string came. Nothing flows out after it. */
  get stopped(): boolean {
    return this.#stopped;
  }

  /** The text that no stop string can take back any more. */
  feed(text: string): string {
    if (this.#stopped) return "";
    const all = this.#held + text;
    const start = firstStop(all, this.stops);
    this.#stopped = start !== null;
    const end = start ?? all.length - Math.max(0, ...this.stops.map((stop) => overlap(all, stop)));
    this.#held = this.#stopped ? "" : all.slice(end);
    return all.slice(0, end);
  }

  /** The text still held back, once it is known that no more comes. */
  finish(): string {
    const held = this.#held;
    this.#held = "";
    return held;
  }
}

/** Where the stop string starts that is complete first, the longest of those: the same however the text is cut into tokens. */
function firstStop(text: string, stops: readonly string[]): number | null {
  const found = stops
    .map((stop) => ({ start: text.indexOf(stop), length: stop.length }))
    .filter(({ start }) => start >= 0);
  const end = Math.min(...found.map(({ start, length }) => start + length));
  return found.length === 0
    ? null
    : end - Math.max(...found.filter(({ start, length }) => start + length === end).map(({ length }) => length));
}

/** The length of the longest end of ``text`` that ``stop`` begins with, short of all of it. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (stop.startsWith(text.slice(-length))) return length;
  }
  return 0;
}
