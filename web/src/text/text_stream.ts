// Turns token ids into text one by one. Text is returned as soon as no later token can change it.

/** What the stream needs of a tokenizer. */
export interface Decoder {
  decode(ids: readonly number[]): string;
  isByteToken(id: number): boolean;
}

const REPLACEMENT = "\ufffd";

/**
 * What `feed` and then `finish` return, put together, is the text of all ids. Text is held back while the last
 * character may still change: an incomplete UTF-8 sequence, or a run of byte tokens. Each step decodes the tokens since
 * the last but one text came out, as decoders treat a first token in a way of its own.
 */
export class TextStream {
  readonly #ids: number[] = [];
  #windowStart = 0;
  #windowText = "";
  #emittedUntil = 0;
  #emittedLength = 0;

  constructor(private readonly decoder: Decoder) {}

  /** The text that this token completes, often that of the token itself, "" while it is held back. */
  feed(id: number): string {
    this.#ids.push(id);
    if (this.decoder.isByteToken(id)) return "";
    const text = this.decode(this.#windowStart);
    if (text.length <= this.#windowText.length || text.endsWith(REPLACEMENT) || !text.startsWith(this.#windowText))
      return "";
    const delta = text.slice(this.#windowText.length);
    this.#windowStart = this.#emittedUntil;
    this.#emittedUntil = this.#ids.length;
    this.#windowText = this.decode(this.#windowStart);
    this.#emittedLength += delta.length;
    return delta;
  }

  /**
   * The text still held back; an incomplete character comes out as U+FFFD. The stream takes no more tokens after it.
   */
  finish(): string {
    const delta = this.decode(0).slice(this.#emittedLength);
    this.#emittedLength += delta.length;
    return delta;
  }

  private decode(start: number): string {
    return this.decoder.decode(this.#ids.slice(start));
  }
}
