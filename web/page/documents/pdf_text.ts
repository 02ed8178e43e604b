// The text of a PDF's pages, from the pieces in which PDF.js returns it, and the document that they make up.

import type { Document } from "../../src/retrieval/index.js";
import { readDocument } from "../../src/retrieval/index.js";

/** A piece of text in the order of the page's content. */
export interface TextPiece {
  readonly str: string;
  /** Whether a line ends here. */
  readonly hasEOL: boolean;
  /** The last two numbers are the place on the page. */
  readonly transform: readonly number[];
  readonly height: number;
}

/** Lines whose distance is this many times their height are of two paragraphs. */
const PARAGRAPH_GAP = 1.7;
const BETWEEN_PAGES = "\n\n";

/** Collects the text of a page, with an empty line between paragraphs. */
export class PageText {
  #text = "";
  /** The height and the place of the last line with words. */
  #last: { readonly y: number; readonly height: number } | null = null;

  get length(): number {
    return this.#text.length;
  }

  add({ str, hasEOL, transform, height }: TextPiece): void {
    if (str.trim() !== "") {
      const y = transform[5] ?? 0;
      const isNewLine = this.#text.endsWith("\n") && !this.#text.endsWith("\n\n");
      if (isNewLine && this.#last !== null) {
        const gap = Math.abs(this.#last.y - y);
        if (gap > PARAGRAPH_GAP * Math.max(height, this.#last.height)) this.#text += "\n";
      }
      this.#last = { y, height };
    }
    this.#text += hasEOL ? `${str}\n` : str;
  }

  toString(): string {
    return this.#text.replace(/[^\S\n]+$/gm, "").trim();
  }
}

/** The pages as one document. The heading of a passage is its page. */
export function pagesDocument(pages: readonly string[], maxCharacters: number): Document {
  let text = "";
  const passages = pages.flatMap((page, index) => {
    if (text !== "" && page !== "") text += BETWEEN_PAGES;
    const offset = text.length;
    text += page;
    return readDocument(page, { format: "text", maxCharacters }).passages.map((passage) => ({
      ...passage,
      start: passage.start + offset,
      end: passage.end + offset,
      headings: [`Page ${index + 1}`],
    }));
  });
  return { text, passages, sourceOffset: (offset) => offset };
}
