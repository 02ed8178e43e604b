"""The code that runs in the process that reads documents: text, Markdown, HTML, Word and PDF. Files may be hostile, so
they may hang or use all memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from nearfar.compiler.runtime.errors import reason_of

from ..processes.worker_loop import serve
from .docx_html import MAX_PART_BYTES, read_docx
from .file_kinds import START_BYTES, WORD_NAME, not_text, unreadable_kind
from .text_encoding import decode_text

TEXT, HTML, PDF = (".txt", ".text", ".md", ".markdown", ".rst"), (".html", ".htm", ".xhtml"), (".pdf",)
WORD = (".docx", ".docm", ".dotx", ".dotm")
# Of a text, with the tags of a web page. web/page/documents/bounds.ts has the same bound.
MAX_CHARACTERS = 5_000_000
MAX_PAGES = 5_000
SKIPPED = {"script", "style", "noscript", "template", "svg", "head", "title"}
# Elements without an end.
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
INLINE = {"a", "abbr", "b", "bdi", "bdo", "cite", "code", "em", "i", "kbd", "mark", "q", "s", "samp", "small", "span",
          "strong", "sub", "sup", "u", "var"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreadable:
    reason: str


TOO_LONG = Unreadable(f"it has more than {MAX_CHARACTERS:,} characters of text; add a part of it")


def main() -> None:
    serve(lambda _: read)


def read(path: object) -> object:
    """The text of a file, or `Unreadable`."""
    assert isinstance(path, Path)
    damaged = "it cannot be read; save it again, or as text in UTF-8"
    try:
        reader, damaged = _reader_of(path)
        return reader(path)
    except MemoryError:
        return Unreadable("it needs too much memory; add a part of it")
    except OSError as error:
        return cannot_open(error)
    except Exception:
        # Messages of parsers may quote the file.
        return Unreadable(damaged)


def cannot_open(error: OSError) -> Unreadable:
    return Unreadable(f"it cannot be opened ({reason_of(error)}); make it readable for this user")


def _reader_of(path: Path) -> tuple[Callable[[Path], str | Unreadable], str]:
    """The reader of a file, by its content if that says what it is, and the reason if it is damaged."""
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        start = file.read(START_BYTES)
    if suffix in PDF or start.startswith(b"%PDF-"):
        reason = "is empty" if not start else "is not a PDF that can be read"
        return read_pdf, f"it {reason}; export it again, or add its text"
    if re.search(WORD_NAME, path.name, re.IGNORECASE) and start.startswith(b"PK"):
        return read_word, "it is not a Word document that can be read; save it again, or add its text"
    return read_html if suffix in HTML else read_text, "it cannot be read; save it again, or as text in UTF-8"


def read_text(path: Path) -> str | Unreadable:
    text = _decoded(path)
    return text.replace("\r\n", "\n") if isinstance(text, str) else text


def read_html(path: Path) -> str | Unreadable:
    text = _decoded(path, html=True)
    return _shown(text) if isinstance(text, str) else text


def read_word(path: Path) -> str | Unreadable:
    html = read_docx(path)
    if html is None:
        return Unreadable(f"it unpacks to more than {MAX_PART_BYTES / 1e6:.0f} MB; add a part of it")
    if len(html) > MAX_CHARACTERS:
        return TOO_LONG
    return _shown(html) or Unreadable("it has no text; add a file that has")


def _decoded(path: Path, *, html: bool = False) -> str | Unreadable:
    data = path.read_bytes()
    refused = unreadable_kind(path.name, data)
    text = decode_text(data, html=html) if refused is None else None
    if text is None:
        return Unreadable(f"it {refused or not_text(data)}")
    return TOO_LONG if len(text) > MAX_CHARACTERS else text


def _shown(html: str) -> str:
    """The text that a page shows."""
    parser = _PageText()
    parser.feed(html)
    parser.close()
    return parser.text()


def read_pdf(path: Path) -> str | Unreadable:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(path)
    try:
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:
        # A cipher of another package than we install.
        is_locked = True
    if is_locked:
        return Unreadable("it is encrypted; add a copy of it without a password")
    if len(reader.pages) > MAX_PAGES:
        return Unreadable(f"it has more than {MAX_PAGES:,} pages; add a part of it")
    parts, length = list[str](), 0
    for page in reader.pages:
        parts.append(page.extract_text() or "")
        length += len(parts[-1])
        if length > MAX_CHARACTERS:
            return TOO_LONG
    text = "\n\n".join(parts)
    return (
        text
        if text.strip()
        else Unreadable("it has no text, only images; add a copy that went through text recognition")
    )


class _PageText(HTMLParser):
    """Collects the text that a page shows."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if tag in SKIPPED and tag not in VOID:
            self._skipped.append(tag)
        if tag not in INLINE:
            self._parts.append("\n" if tag == "br" else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped:
            del self._skipped[self._skipped.index(tag) :]
        if tag not in INLINE:
            self._parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            # White space of any length is one space.
            self._parts.append(" ".join(f"|{data}|".split())[1:-1])

    def text(self) -> str:
        lines = (" ".join(line.split()) for line in "".join(self._parts).split("\n"))
        paragraphs, text = list[str](), ""
        for line in lines:
            if line:
                text = f"{text}\n{line}" if text else line
            elif text:
                paragraphs.append(text)
                text = ""
        return "\n\n".join([*paragraphs, *([text] if text else [])])
