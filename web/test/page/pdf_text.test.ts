// The text of a PDF's pages.

import { describe, expect, it } from "vitest";

import { PageText, pagesDocument } from "../../page/documents/pdf_text.js";

/** A piece of text at this height of the page. */
function piece(str: string, y: number, hasEOL = true) {
  return { str, hasEOL, transform: [10, 0, 0, 10, 20, y], height: 10 };
}

function textOf(...pieces: readonly ReturnType<typeof piece>[]): string {
  const text = new PageText();
  for (const each of pieces) text.add(each);
  return text.toString();
}

describe("PageText", () => {
  it("joins the pieces of a line, and keeps lines of a paragraph together", () => {
    expect(textOf(piece("A boat", 700, false), piece(" floats", 700), piece("on water.  ", 688))).toBe(
      "A boat floats\non water.",
    );
  });

  it("puts one empty line between paragraphs, below or in the next column", () => {
    expect(textOf(piece("one", 700), piece("two", 660), piece("", 650), piece("three", 640), piece("up", 700))).toBe(
      "one\n\ntwo\n\nthree\n\nup",
    );
  });
});

describe("pagesDocument", () => {
  it("names each passage's page, and its offsets are those of the whole text", () => {
    const { text, passages } = pagesDocument(["A boat floats.", "", "A bird builds.\n\nA nest."], 32);
    expect(passages.map(({ headings }) => headings)).toEqual([["Page 1"], ["Page 3"]]);
    for (const { text: own, start, end } of passages) expect(text.slice(start, end)).toBe(own);
    expect(text).toBe("A boat floats.\n\nA bird builds.\n\nA nest.");
  });
});
