// Files that have a text which no reader here finds, by their first bytes and their names.

/** Names of Word documents, and of files that programs other than Word save under these names. */
export const WORD_NAME = /\.do[ct][xm]?$/i;
/* oxlint-disable no-control-regex -- the first bytes of files */
const KINDS: readonly (readonly [RegExp, RegExp, reason: string])[] = [
  [/^\xd0\xcf\x11\xe0/, /^/, "is an old Office file or has a password; save it as .docx or PDF, without a password"],
  [/^\{\\rtf/, /^/, "is a rich text file; save it as .docx or PDF"],
  // These two are read on the documents page.
  [/^%PDF-/, /^/, "is a PDF; ask about it on the documents page, or attach its text"],
  [/^PK\x03\x04/, WORD_NAME, "is a Word document; ask about it on the documents page, or attach its text"],
  [/^PK\x03\x04/, /\.(?:xls[xmb]|ods|numbers)$/i, "is a spreadsheet; save it as CSV or PDF"],
  [/^PK\x03\x04/, /\.(?:pp[ts]x|odp|key)$/i, "is a presentation; save it as PDF"],
  [/^PK\x03\x04/, /\.(?:odt|pages)$/i, "is a document of another program than Word; save it as .docx or PDF"],
  [/^PK\x03\x04/, /\.epub$/i, "is an e-book; add its text, or a PDF of it"],
  [/^(?:PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!)/, /^/, "is an archive; add the files that it contains"],
  [
    /^(?:\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP|II\*\0|MM\0\*|....ftyp(?:hei|mif|avi))/s,
    /^/,
    "is an image; add a PDF that went through text recognition",
  ],
  [/^(?:ID3|OggS|fLaC|RIFF....(?:WAVE|AVI )|....ftyp|\x1a\x45\xdf\xa3)/s, /^/, "is sound or video; add its text"],
  [
    /^(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\0\s]*</,
    WORD_NAME,
    "is a web page or XML with the name of a Word document; name it .html, or save it as .docx in Word",
  ],
  [/^/, WORD_NAME, "is not a Word document, although its name says so; save it as .docx, or name a text .txt"],
];
/* oxlint-enable no-control-regex */

/**
 * The rest of a sentence that begins with the file's name: what it is, and what to do; null if it may be a text.
 * ``start``: its first 16 bytes, each as a character.
 */
export function unreadableKind(name: string, start: string): string | null {
  return KINDS.find(([head, ending]) => head.test(start) && ending.test(name))?.[2] ?? null;
}

/** The same for bytes that are not text in an encoding that we know; ``isBinary`` if they are none in any. */
export function notText(isBinary: boolean): string {
  return isBinary
    ? "is not a text file; add text, Markdown, HTML, Word (.docx) or PDF, for example an export of it"
    : "is text in an unknown encoding; save it as UTF-8";
}
