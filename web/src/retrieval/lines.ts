// The lines of a text, with their offsets.

export interface Line {
  /** Without the line feed, and without a carriage return in front of it. */
  readonly text: string;
  readonly start: number;
}

export function* linesOf(source: string): Generator<Line, void, undefined> {
  for (let start = 0; start <= source.length;) {
    const feed = source.indexOf("\n", start);
    const end = feed === -1 ? source.length : feed;
    yield { text: source.slice(start, source[end - 1] === "\r" && end > start ? end - 1 : end), start };
    start = end + 1;
  }
}
