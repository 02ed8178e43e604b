// A file as a document of the index.

import { RequestError } from "../../src/errors.js";
import type { DocumentFormat, NewDocument } from "../../src/retrieval/index.js";
import { readDocument } from "../../src/retrieval/index.js";
import { formatBytes } from "../format.js";

export const MOST_FILE_BYTES = 5_000_000;

const FORMATS: readonly (readonly [RegExp, DocumentFormat])[] = [
  [/\.(?:md|markdown)$/i, "markdown"],
  [/\.(?:html?|xhtml)$/i, "html"],
];

/** Throws RequestError for a file that is too large, is not text, or has no words. ``maxCharacters``: of a passage. */
export async function readDocumentFile(file: File, maxCharacters: number): Promise<NewDocument> {
  if (file.size > MOST_FILE_BYTES)
    throw new RequestError(
      `${file.name} has ${formatBytes(file.size)}, and a document at most ${formatBytes(MOST_FILE_BYTES)}; add a part of it`,
    );
  const source = await textOf(file);
  if (source === null)
    throw new RequestError(`${file.name} is not a text file; add text, Markdown or HTML, for example an export of it`);
  const format = FORMATS.find(([name]) => name.test(file.name))?.[1] ?? "text";
  const document = readDocument(source, { format, maxCharacters });
  if (document.passages.length === 0) throw new RequestError(`${file.name} has no text; add a file that has`);
  return { id: file.name, document };
}

/** Null if the bytes are not UTF-8 or have a zero byte. */
async function textOf(file: File): Promise<string | null> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}
