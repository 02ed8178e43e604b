// Cuts an answer into sentences while it is written, and writes them as they are spoken.

export class Sentences {
  readonly #segmenter: Intl.Segmenter;
  #text = "";

  /** ``language``: a code such as "en", whose rules apply. */
  constructor(language?: string) {
    this.#segmenter = new Intl.Segmenter(language, { granularity: "sentence" });
  }

  /** The sentences that have ended. The browser's rules find their ends, so a sentence ends when the next one begins. */
  push(text: string): readonly string[] {
    this.#text += text;
    const found = [...this.#segmenter.segment(this.#text)].map(({ segment }) => segment);
    this.#text = found.pop() ?? "";
    return found.flatMap(spoken);
  }

  /** The rest of the answer. */
  end(): readonly string[] {
    const rest = this.#text;
    this.#text = "";
    return spoken(rest);
  }
}

/** A sentence without Markdown's marks; none if nothing is left to be spoken. */
function spoken(sentence: string): readonly string[] {
  const text = sentence
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/^\s*(?:#{1,6}|>|[-*+]|\d+\.)\s+/gm, "")
    .replace(/[*_`~#|]+/g, "")
    .replace(/\s+/g, " ")
    .trim();
  return /[\p{L}\p{N}]/u.test(text) ? [text] : [];
}
