// A document of an index: its text once, and its passages as ranges of it.

import { RequestError } from "../errors.js";
import type { Passage } from "./document.js";

/** A document to add. ``document`` comes from `readDocument`, or from a reader of your own. */
export interface NewDocument {
  /** A document with the same id is replaced. */
  readonly id: string;
  /** What a citation shows; the id by default. */
  readonly title?: string | undefined;
  readonly document: { readonly text: string; readonly passages: readonly Passage[] };
}

/** A document of an index, as it is stored. */
export interface IndexedDocument {
  readonly id: string;
  readonly title: string;
  readonly text: string;
  readonly passages: readonly Omit<Passage, "text">[];
}

/** Throws RequestError for an empty id, and for passages that are not ranges of the text. */
export function indexedDocument({ id, title = id, document: { text, passages } }: NewDocument): IndexedDocument {
  if (id === "") throw new RequestError("A document's id is empty; give each document an id", { param: "id" });
  for (const [index, { text: part, start, end }] of passages.entries()) {
    if (part === "" || text.slice(start, end) !== part)
      throw new RequestError(
        `Passage ${index} of '${id}' is not the text from ${start} to ${end}; use the offsets of readDocument`,
        { param: "passages", index },
      );
  }
  return { id, title, text, passages: passages.map(({ start, end, headings }) => ({ start, end, headings })) };
}

/** The text that is embedded and searched for words: the headings and the passage. White space and rules are short. */
export function searchText(
  { text }: { readonly text: string },
  { start, end, headings }: Omit<Passage, "text">,
): string {
  const body = text
    .slice(start, end)
    .replace(/[-=_*|:]{3,}/g, " ")
    .replace(/\s+/g, " ")
    .trim();
  return headings.length === 0 ? body : `${headings.join(" > ")}\n${body}`;
}
