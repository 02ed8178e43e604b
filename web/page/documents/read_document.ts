// A file as a document of the index.

import { RequestError } from "../../src/errors.js";
import type { Document, DocumentFormat, NewDocument } from "../../src/retrieval/index.js";
import { readDocument } from "../../src/retrieval/index.js";
import { formatBytes } from "../format.js";
import { pagesDocument } from "./pdf_text.js";

export const MOST_FILE_BYTES = 5_000_000;
/** Images take most of a PDF's bytes. */
const MOST_PDF_BYTES = 50_000_000;
const PDF_START = "%PDF-";

const FORMATS: readonly (readonly [RegExp, DocumentFormat])[] = [
  [/\.(?:md|markdown)$/i, "markdown"],
  [/\.(?:html?|xhtml)$/i, "html"],
];

/**
 * Throws RequestError, which names the file, for one that is too large, that is neither text nor a PDF, or that has no
 * words. ``maxCharacters``: of a passage.
 */
export async function readDocumentFile(file: File, maxCharacters: number): Promise<NewDocument> {
  const isPdf = await startsPdf(file);
  const most = isPdf ? MOST_PDF_BYTES : MOST_FILE_BYTES;
  if (file.size > most)
    throw new RequestError(
      `${file.name} has ${formatBytes(file.size)}, and a document at most ${formatBytes(most)}; add a part of it`,
    );
  const document = isPdf ? await pdfOf(file, maxCharacters) : await textDocumentOf(file, maxCharacters);
  if (document.passages.length === 0)
    throw new RequestError(
      isPdf
        ? `${file.name} has no text, only images; add a copy that went through text recognition`
        : `${file.name} has no text; add a file that has`,
    );
  return { id: file.name, document };
}

async function startsPdf(file: File): Promise<boolean> {
  const head = await file.slice(0, PDF_START.length).arrayBuffer();
  return /\.pdf$/i.test(file.name) || new TextDecoder("latin1").decode(head).startsWith(PDF_START);
}

/** The code is loaded with the first PDF. */
async function pdfOf(file: File, maxCharacters: number): Promise<Document> {
  const { readPdf } = await import("./read_pdf.js");
  return pagesDocument(await readPdf(file.name, await file.arrayBuffer()), maxCharacters);
}

async function textDocumentOf(file: File, maxCharacters: number): Promise<Document> {
  const source = await textOf(file);
  if (source === null)
    throw new RequestError(
      `${file.name} is neither a text file nor a PDF; add text, Markdown, HTML or PDF, for example an export of it`,
    );
  const format = FORMATS.find(([name]) => name.test(file.name))?.[1] ?? "text";
  return readDocument(source, { format, maxCharacters });
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
