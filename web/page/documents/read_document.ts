// A file as a document of the index.

import { RequestError } from "../../src/errors.js";
import type { Document, DocumentFormat, NewDocument } from "../../src/retrieval/index.js";
import { readDocument } from "../../src/retrieval/index.js";
import { WORD_NAME } from "../../src/shared/file_kinds.js";
import { formatBytes } from "../../src/format_bytes.js";
import { decodeText, notText, unreadableKind } from "../text_encoding.js";
import { MOST_CHARACTERS, MOST_FILE_BYTES, tooLong } from "./bounds.js";
import { pagesDocument } from "./pdf_text.js";

const FORMATS: readonly (readonly [RegExp, DocumentFormat])[] = [
  [/\.(?:md|markdown)$/i, "markdown"],
  [/\.(?:html?|xhtml)$/i, "html"],
];

/**
 * Throws RequestError, which names the file, for one that is too large, that is of another kind, or that has no words.
 * ``maxCharacters``: of a passage.
 */
export async function readDocumentFile(file: File, maxCharacters: number): Promise<NewDocument> {
  const kind = await kindOf(file);
  if (file.size > MOST_FILE_BYTES)
    throw new RequestError(
      `${file.name} has ${formatBytes(file.size)}, and a document at most ${formatBytes(MOST_FILE_BYTES)}; add a part of it`,
    );
  const document = await READERS[kind](file, maxCharacters);
  if (document.passages.length === 0)
    throw new RequestError(
      kind === "pdf"
        ? `${file.name} has no text, only images; add a copy that went through text recognition`
        : `${file.name} has no text; add a file that has`,
    );
  return { id: file.name, document };
}

async function kindOf(file: File): Promise<"pdf" | "docx" | "text"> {
  const start = new TextDecoder("latin1").decode(await file.slice(0, 5).arrayBuffer());
  if (/\.pdf$/i.test(file.name) || start === "%PDF-") return "pdf";
  return WORD_NAME.test(file.name) && start.startsWith("PK") ? "docx" : "text";
}

type Reader = (file: File, maxCharacters: number) => Promise<Document>;

/** The code for PDFs and for Word documents is loaded with the first one. */
const READERS: Readonly<Record<"pdf" | "docx" | "text", Reader>> = {
  async pdf(file, maxCharacters) {
    const { readPdf } = await import("./read_pdf.js");
    return pagesDocument(await readPdf(file.name, await file.arrayBuffer()), maxCharacters);
  },
  async docx(file, maxCharacters) {
    const { readDocx } = await import("./read_docx.js");
    return divided(file, await readDocx(file.name, await bytesOf(file)), "html", maxCharacters);
  },
  async text(file, maxCharacters) {
    const bytes = await bytesOf(file);
    const format = FORMATS.find(([name]) => name.test(file.name))?.[1] ?? "text";
    const refused = unreadableKind(file.name, bytes);
    const text = refused === null ? decodeText(bytes, { html: format === "html" }) : null;
    if (text === null) throw new RequestError(`${file.name} ${refused ?? notText(bytes)}`);
    return divided(file, text, format, maxCharacters);
  },
};

function divided(file: File, text: string, format: DocumentFormat, maxCharacters: number): Document {
  if (text.length > MOST_CHARACTERS) throw tooLong(file.name);
  return readDocument(text, { format, maxCharacters });
}

async function bytesOf(file: File): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await file.arrayBuffer());
}
