// Divides text among the tokens that wrote it, in bytes: a character may be written by several tokens.

const UTF8 = new TextEncoder();

/**
 * The part of ``text`` that each of a run of tokens wrote, in UTF-8. ``own`` are the tokens' own bytes.
 *
 * Joined, the parts are always the text. A decoder may drop bytes at the start of the run, such as the space before the
 * first word of an answer. If it changed others, as for an incomplete character, the last token wrote all of the text.
 */
export function splitText(text: string, own: readonly Uint8Array[]): readonly Uint8Array[] {
  const whole = UTF8.encode(text);
  const all = joined(own);
  let dropped = all.length - whole.length;
  if (dropped < 0 || whole.some((byte, index) => all[dropped + index] !== byte))
    return own.map((_, index) => (index === own.length - 1 ? whole : new Uint8Array()));
  return own.map((each) => {
    const skipped = Math.min(dropped, each.length);
    dropped -= skipped;
    return each.subarray(skipped);
  });
}

/** What ``text.slice(start, end)`` leaves of the parts of a text; see `splitText`. */
export function cutParts(
  text: string,
  parts: readonly Uint8Array[],
  start: number,
  end: number,
): readonly Uint8Array[] {
  const bytesBefore = (at: number): number => UTF8.encode(text.slice(0, Math.max(0, at))).length;
  const [first, last] = [bytesBefore(start), bytesBefore(Math.max(start, end))];
  let position = 0;
  return parts.map((part) => {
    const cut = part.subarray(Math.max(0, first - position), Math.max(0, last - position));
    position += part.length;
    return cut;
  });
}

/**
 * The texts that a reader keeps of the text that it is fed, and what they leave of each token's part. A reader of tool
 * calls drops the calls, and holds back text whose kind it does not know yet.
 */
export class KeptText {
  /** The parts of the tokens that are not decided yet. */
  #parts: Uint8Array[] = [];
  /** Which of their bytes are kept, as far as that is decided. */
  #kept: boolean[] = [];

  feed(parts: readonly Uint8Array[]): void {
    this.#parts.push(...parts);
  }

  /** What ``texts``, which the reader keeps in this order, leave of the tokens before its ``undecided`` text. */
  take(texts: readonly string[], undecided: string): readonly Uint8Array[] {
    const all = joined(this.#parts);
    const decided = all.length - UTF8.encode(undecided).length;
    let at = this.#kept.length;
    while (this.#kept.length < decided) this.#kept.push(false);
    for (const text of texts.map((each) => UTF8.encode(each))) {
      const start = indexOf(all.subarray(0, decided), text, at);
      if (start < 0) throw new Error("a reader keeps only text that it was fed");
      at = start + text.length;
      this.#kept.fill(true, start, at);
    }
    const parts: Uint8Array[] = [];
    for (let part = this.#parts[0]; part !== undefined && part.length <= this.#kept.length; part = this.#parts[0]) {
      const keeps = this.#kept.splice(0, part.length);
      parts.push(part.filter((_, index) => keeps[index]));
      this.#parts.shift();
    }
    return parts;
  }
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

function indexOf(all: Uint8Array, text: Uint8Array, from: number): number {
  for (let start = from; start + text.length <= all.length; start++)
    if (text.every((byte, index) => all[start + index] === byte)) return start;
  return -1;
}
