// Turns token ids into text one by one. Text is returned as soon as no later token can change it.

/** The methods of a tokenizer that the stream uses. */
export interface Decoder {
  decode(ids: readonly number[], skipSpecialTokens?: boolean): string;
  isByteToken(id: number): boolean;
}

const REPLACEMENT = "\ufffd";

/**
 * The concatenated results of `feed` and `finish` are the text of all ids. Text is held back while the last
 * character may still change: an incomplete UTF-8 sequence, or a run of byte tokens. Each step decodes the tokens
 * since the last but one emitted text, because decoders treat the first token differently.
 */
export class TextStream {
  readonly #ids: number[] = [];
  #windowStart = 0;
  #windowText = "";
  #emittedUntil = 0;
  #emittedLength = 0;

  constructor(
    private readonly decoder: Decoder,
    private readonly skipSpecialTokens = true,
  ) {}

  /** The text that this token completes, often its own text; "" while text is held back. */
  feed(id: number): string {
    this.#ids.push(id);
    if (this.decoder.isByteToken(id)) return "";
    const text = this.#decode(this.#windowStart);
    if (text.length <= this.#windowText.length || text.endsWith(REPLACEMENT) || !text.startsWith(this.#windowText))
      return "";
    const delta = text.slice(this.#windowText.length);
    this.#windowStart = this.#emittedUntil;
    this.#emittedUntil = this.#ids.length;
    this.#windowText = this.#decode(this.#windowStart);
    this.#emittedLength += delta.length;
    return delta;
  }

  /**
   * The text still held back; an incomplete character becomes U+FFFD. The stream accepts no tokens after this call.
   */
  finish(): string {
    const delta = this.#decode(0).slice(this.#emittedLength);
    this.#emittedLength += delta.length;
    return delta;
  }

  #decode(start: number): string {
    return this.decoder.decode(this.#ids.slice(start), this.skipSpecialTokens);
  }
}
