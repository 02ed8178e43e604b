"""Files that have a text which no reader here finds, by their first bytes and their names. web/page/file_kinds.ts has
the same table; tests/conformance/text_files.json holds cases of both.
"""

from __future__ import annotations

import re

from .text_encoding import maybe_utf16

# Files of these names are named among those that cannot be read; others, such as images, are left out.
SUFFIXES = (".doc", ".rtf", ".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers", ".ppt", ".pptx", ".ppsx", ".odp",
            ".key", ".odt", ".pages", ".epub")  # fmt: skip
START_BYTES = 16
# Names of Word documents, and of files that programs other than Word save under these names.
WORD_NAME = r"\.do[ct][xm]?$"
ZIP = rb"PK\x03\x04"
KINDS = [
    (re.compile(start, re.DOTALL), re.compile(ending, re.IGNORECASE), reason)
    for start, ending, reason in (
        (rb"\xd0\xcf\x11\xe0", "",
         "is an old Office file or has a password; save it as .docx or PDF, without a password"),
        (rb"\{\\rtf", "", "is a rich text file; save it as .docx or PDF"),
        (ZIP, r"\.(?:xls[xmb]|ods|numbers)$", "is a spreadsheet; save it as CSV or PDF"),
        (ZIP, r"\.(?:pp[ts]x|odp|key)$", "is a presentation; save it as PDF"),
        (ZIP, r"\.(?:odt|pages)$", "is a document of another program than Word; save it as .docx or PDF"),
        (ZIP, r"\.epub$", "is an e-book; add its text, or a PDF of it"),
        (rb"PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!", "", "is an archive; add the files that it contains"),
        (rb"\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP|II\*\0|MM\0\*|....ftyp(?:hei|mif|avi)", "",
         "is an image; add a PDF that went through text recognition"),
        (rb"ID3|OggS|fLaC|RIFF....(?:WAVE|AVI )|....ftyp|\x1a\x45\xdf\xa3", "", "is a recording; add its text"),
        (rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\0\s]*<", WORD_NAME,
         "is a web page or XML with the name of a Word document; name it .html, or save it as .docx in Word"),
        (b"", WORD_NAME, "is not a Word document, although its name says so; save it as .docx, or name a text .txt"),
    )
]  # fmt: skip


def unreadable_kind(name: str, data: bytes) -> str | None:
    """The rest of a sentence about the file: what it is, and what to do; None if it may be a text."""
    start = data[:START_BYTES]
    return next((reason for head, ending, reason in KINDS if head.match(start) and ending.search(name)), None)


def not_text(data: bytes) -> str:
    """The same for bytes that are not text in an encoding that we know."""
    if b"\0" in data and not maybe_utf16(data):
        return "is not a text file; add text, Markdown, HTML, Word (.docx) or PDF, for example an export of it"
    return "is text in an unknown encoding; save it as UTF-8"
