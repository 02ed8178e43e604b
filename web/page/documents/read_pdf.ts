// The text of a PDF's pages, by PDF.js. The page serves its files, and loads them with the first PDF.
//
// A PDF may be hostile. PDF.js parses it in a worker of its own, which is ended at the end, or when the time is over.

import { PDFWorker, getDocument } from "pdfjs-dist/legacy/build/pdf.mjs";

import { RequestError, messageOf } from "../../src/errors.js";
import { formatCount } from "../format.js";
import { MOST_CHARACTERS, tooLong } from "./bounds.js";
import type { TextPiece } from "./pdf_text.js";
import { PageText } from "./pdf_text.js";

const MOST_PAGES = 2000;
const MOST_SECONDS = 60;
const WORKER = "pdf/pdf.worker.min.mjs";
/** The encodings of fonts for Chinese, Japanese and Korean that a PDF names and does not contain. */
const ENCODINGS = "pdf/cmaps/";

/** The text of each page. Throws RequestError, which names the file and the reason. */
export async function readPdf(name: string, bytes: ArrayBuffer): Promise<readonly string[]> {
  const port = new Worker(WORKER, { type: "module" });
  const worker = PDFWorker.create({ port, verbosity: 0 });
  let timer: ReturnType<typeof setTimeout> | undefined;
  const failed = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new RequestError(`${name} takes more than ${MOST_SECONDS} s to read; add a part of it`));
    }, MOST_SECONDS * 1000);
    port.addEventListener("error", ({ message }) => {
      reject(new RequestError(`${name} cannot be read: PDF.js did not start (${message}); reload the page`));
    });
  });
  try {
    return await Promise.race([failed, pagesOf(name, bytes, worker)]);
  } catch (error) {
    if (error instanceof RequestError) throw error;
    if (error instanceof Error && error.name === "PasswordException")
      throw new RequestError(`${name} is encrypted; add a copy of it without a password`);
    throw new RequestError(
      `${name} is not a PDF that can be read (${messageOf(error)}); export it again, or add its text`,
    );
  } finally {
    clearTimeout(timer);
    worker.destroy();
    port.terminate();
  }
}

async function pagesOf(name: string, bytes: ArrayBuffer, worker: PDFWorker): Promise<readonly string[]> {
  const document = await getDocument({
    data: new Uint8Array(bytes),
    worker,
    cMapUrl: new URL(ENCODINGS, location.href).href,
    cMapPacked: true,
    // Only text is read: no fonts, images, forms or WebAssembly.
    disableFontFace: true,
    useSystemFonts: true,
    isImageDecoderSupported: false,
    isOffscreenCanvasSupported: false,
    useWasm: false,
    maxImageSize: 1,
  }).promise;
  if (document.numPages > MOST_PAGES)
    throw new RequestError(
      `${name} has ${formatCount(document.numPages)} pages, and a document at most ${formatCount(MOST_PAGES)}; add a part of it`,
    );
  const pages: string[] = [];
  let characters = 0;
  for (let number = 1; number <= document.numPages; number++) {
    const page = await document.getPage(number);
    const text = new PageText();
    const reader = (page.streamTextContent() as ReadableStream<{ readonly items: readonly object[] }>).getReader();
    for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
      for (const item of chunk.value.items) if ("str" in item) text.add(item as TextPiece);
      if (characters + text.length > MOST_CHARACTERS) throw tooLong(name);
    }
    page.cleanup();
    characters += text.length;
    pages.push(text.toString());
  }
  return pages;
}
