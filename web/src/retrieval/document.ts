// A document as passages: parts of its readable text that are small enough to embed, with their offsets.

import { RequestError } from "../errors.js";
import { readHtml } from "./html.js";
import { linesOf } from "./lines.js";
import { markdownBlocks } from "./markdown.js";
import { pack } from "./pack.js";

export const DOCUMENT_FORMATS = ["text", "markdown", "html"] as const;
export type DocumentFormat = (typeof DOCUMENT_FORMATS)[number];

/** A passage of a document. The passage's text is ``document.text.slice(start, end)``; offsets are UTF-16 units. */
export interface Passage {
  readonly text: string;
  readonly start: number;
  readonly end: number;
  /** The headings above the passage, the outermost first. */
  readonly headings: readonly string[];
}

/** A part of a text that should not be split, such as a paragraph, a list item, or a row of a table. */
export interface Block {
  readonly start: number;
  readonly end: number;
  readonly headings: readonly string[];
}

export interface Document {
  /** What a reader sees: the source itself for text and Markdown, the text without tags for HTML. */
  readonly text: string;
  readonly passages: readonly Passage[];
  /** The offset in the source of an offset in ``text``. */
  readonly sourceOffset: (offset: number) => number;
}

export interface DocumentOptions {
  readonly format: DocumentFormat;
  /** The maximum length of a passage in UTF-16 units, 600 by default. */
  readonly maxCharacters?: number | undefined;
}

const DEFAULT_CHARACTERS = 600;
const LEAST_CHARACTERS = 32;

/** Divide a document into passages. Throws RequestError for an unknown format and for lengths below 32. */
export function readDocument(
  source: string,
  { format, maxCharacters = DEFAULT_CHARACTERS }: DocumentOptions,
): Document {
  if (!Number.isInteger(maxCharacters) || maxCharacters < LEAST_CHARACTERS)
    throw new RequestError(`maxCharacters is ${maxCharacters}; use an integer of at least ${LEAST_CHARACTERS}`, {
      param: "maxCharacters",
    });
  switch (format) {
    case "text":
      return document(source, paragraphs(source), maxCharacters);
    case "markdown":
      return document(source, markdownBlocks(source), maxCharacters);
    case "html": {
      const { text, blocks, sourceOffset } = readHtml(source);
      return document(text, blocks, maxCharacters, sourceOffset);
    }
    default:
      throw new RequestError(
        `The document format is ${String(format satisfies never)}; use one of ${DOCUMENT_FORMATS.join(", ")}`,
        { param: "format" },
      );
  }
}

function document(
  text: string,
  blocks: readonly Block[],
  maxCharacters: number,
  sourceOffset: Document["sourceOffset"] = (offset) => offset,
): Document {
  return { text, passages: pack(text, blocks, maxCharacters), sourceOffset };
}

/** The parts between empty lines. */
function paragraphs(text: string): Block[] {
  const blocks: Block[] = [];
  let open: Block | null = null;
  for (const line of linesOf(text)) {
    const words = line.text.trim();
    if (words === "") {
      open = null;
      continue;
    }
    const end = line.start + line.text.trimEnd().length;
    const start: number = open === null ? line.start + line.text.indexOf(words) : open.start;
    if (open !== null) blocks.pop();
    open = { start, end, headings: [] };
    blocks.push(open);
  }
  return blocks;
}
