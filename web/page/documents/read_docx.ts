// The text of a Word document (.docx), a zip archive of XML. The page loads this with the first one.

import { strFromU8, unzipSync } from "fflate";

import { RequestError } from "../../src/errors.js";
import { formatBytes } from "../format.js";
import { docxHtml, headingLevels } from "./docx_html.js";

/** A small archive may unpack to any size. */
const MOST_PART_BYTES = 64_000_000;
const MAIN = "word/document.xml";
const STYLES = "word/styles.xml";
const NOTES = ["word/footnotes.xml", "word/endnotes.xml"];

/** The document as HTML. Throws RequestError, which names the file, for a damaged or too large one. */
export function readDocx(name: string, bytes: Uint8Array): string {
  const parts = partsOf(name, bytes);
  const main = parts.get(MAIN);
  if (main === undefined) throw damaged(name);
  const levels = headingLevels(parts.get(STYLES) ?? "");
  return [main, ...NOTES.map((part) => parts.get(part) ?? "")].map((part) => docxHtml(part, levels)).join("");
}

function partsOf(name: string, bytes: Uint8Array): ReadonlyMap<string, string> {
  const wanted = new Set([MAIN, STYLES, ...NOTES]);
  try {
    const parts = unzipSync(bytes, {
      filter: ({ name: part, originalSize }) => {
        if (wanted.has(part) && originalSize > MOST_PART_BYTES)
          throw new RequestError(
            `${name} has ${formatBytes(originalSize)} of text, and a document at most ${formatBytes(MOST_PART_BYTES)}; ` +
              "add a part of it",
          );
        return wanted.has(part);
      },
    });
    return new Map(Object.entries(parts).map(([part, data]) => [part, strFromU8(data)]));
  } catch (error) {
    if (error instanceof RequestError) throw error;
    throw damaged(name);
  }
}

function damaged(name: string): RequestError {
  return new RequestError(`${name} is not a Word document that can be read; save it again, or add its text`);
}
