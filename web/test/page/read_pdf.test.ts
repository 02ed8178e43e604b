// Errors of a PDF's reading, and the end of its worker, over a fake PDF.js. tests/web reads real PDFs.

import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { readPdf } from "../../page/documents/read_pdf.js";

const pdf = vi.hoisted(() => ({ open: (): Promise<unknown> => new Promise(() => undefined) }));
vi.mock("pdfjs-dist/legacy/build/pdf.mjs", () => ({
  // The port is ended by its owner.
  PDFWorker: { create: () => ({ destroy: () => undefined }) },
  getDocument: () => ({ promise: pdf.open() }),
}));

const ports: FakeWorker[] = [];
class FakeWorker extends EventTarget {
  ended = 0;
  constructor() {
    super();
    ports.push(this);
  }
  terminate(): void {
    this.ended++;
  }
}

/** A document with this number of pages, each of which has these texts in turn, without an end. */
function endless(numPages: number, str: string) {
  const streamTextContent = (): ReadableStream =>
    new ReadableStream({
      pull: (controller) => {
        controller.enqueue({ items: [{ str, hasEOL: true, transform: [1, 0, 0, 1, 0, 0], height: 1 }] });
      },
    });
  return { numPages, getPage: () => Promise.resolve({ streamTextContent, cleanup: () => undefined }) };
}

beforeEach(() => {
  ports.length = 0;
  vi.stubGlobal("Worker", FakeWorker);
  vi.stubGlobal("location", { href: "https://example.org/documents.html" });
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

it("a PDF that takes too long is refused by name, and its worker ends", async () => {
  vi.useFakeTimers();
  pdf.open = () => new Promise(() => undefined);
  const reading = expect(readPdf("slow.pdf", new ArrayBuffer(0))).rejects.toThrow("slow.pdf takes more than 60 s");
  await vi.advanceTimersByTimeAsync(60_000);
  await reading;
  expect(ports.map(({ ended }) => ended)).toEqual([1]);
});

it.each([
  ["text without an end", () => Promise.resolve(endless(1, "a".repeat(100_000))), "x.pdf has more than 5,000,000"],
  ["too many pages", () => Promise.resolve(endless(2001, "")), "x.pdf has 2,001 pages"],
  ["another format", () => Promise.reject(new Error("no header")), "x.pdf is not a PDF that can be read (no header)"],
])("%s is refused by name, and its worker ends", async (_, open, message) => {
  pdf.open = open;
  await expect(readPdf("x.pdf", new ArrayBuffer(0))).rejects.toThrow(message);
  expect(ports.map(({ ended }) => ended)).toEqual([1]);
});

it("a worker that does not start is reported", async () => {
  pdf.open = () => new Promise(() => undefined);
  const reading = expect(readPdf("x.pdf", new ArrayBuffer(0))).rejects.toThrow("PDF.js did not start");
  ports[0]?.dispatchEvent(new Event("error"));
  await reading;
});
