"""The code that runs in the process that reads documents: text, Markdown, HTML, Word and PDF. Files may be hostile, so
they may hang or use all memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from ..text.worker_loop import serve
from .docx_html import read_docx
from .file_kinds import not_text, unreadable_kind
from .text_encoding import decode_text

TEXT, HTML, PDF = (".txt", ".text", ".md", ".markdown", ".rst"), (".html", ".htm", ".xhtml"), (".pdf",)
WORD = (".docx", ".docm", ".dotx", ".dotm")
MAX_CHARACTERS = 16_000_000
MAX_PAGES = 5_000
SKIPPED = {"script", "style", "noscript", "template", "svg", "head", "title"}
# Elements without an end.
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
INLINE = {"a", "abbr", "b", "bdi", "bdo", "cite", "code", "em", "i", "kbd", "mark", "q", "s", "samp", "small", "span",
          "strong", "sub", "sup", "u", "var"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreadable:
    reason: str


def main() -> None:
    serve(lambda: read)


def read(path: object) -> object:
    """The text of a file, or `Unreadable`."""
    assert isinstance(path, Path)
    try:
        text = reader_of(path)(path)
    except MemoryError:
        return Unreadable("it needs too much memory")
    except Exception as error:
        # Messages of parsers may quote the file.
        return Unreadable(f"it cannot be read ({type(error).__name__})")
    if isinstance(text, str) and len(text) > MAX_CHARACTERS:
        return Unreadable(f"it has more than {MAX_CHARACTERS:,} characters")
    return text


def reader_of(path: Path) -> Callable[[Path], str | Unreadable]:
    suffix = path.suffix.lower()
    if suffix in WORD and path.read_bytes()[:2] == b"PK":
        return read_word
    return read_pdf if suffix in PDF else read_html if suffix in HTML else read_text


def read_text(path: Path) -> str | Unreadable:
    text = _decoded(path)
    return text.replace("\r\n", "\n") if isinstance(text, str) else text


def read_html(path: Path) -> str | Unreadable:
    text = _decoded(path, html=True)
    return _shown(text) if isinstance(text, str) else text


def read_word(path: Path) -> str | Unreadable:
    html = read_docx(path)
    if html is None:
        return Unreadable("it has too much text")
    return _shown(html) or Unreadable("it has no text")


def _decoded(path: Path, *, html: bool = False) -> str | Unreadable:
    data = path.read_bytes()
    refused = unreadable_kind(path.name, data)
    text = decode_text(data, html=html) if refused is None else None
    return Unreadable(f"it {refused or not_text(data)}") if text is None else text


def _shown(html: str) -> str:
    """The text that a page shows."""
    parser = _PageText()
    parser.feed(html)
    parser.close()
    return parser.text()


def read_pdf(path: Path) -> str | Unreadable:
    from pypdf import PdfReader

    reader = PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        return Unreadable("it is encrypted")
    if len(reader.pages) > MAX_PAGES:
        return Unreadable(f"it has more than {MAX_PAGES:,} pages")
    parts, length = list[str](), 0
    for page in reader.pages:
        parts.append(page.extract_text() or "")
        length += len(parts[-1])
        if length > MAX_CHARACTERS:
            return Unreadable(f"it has more than {MAX_CHARACTERS:,} characters")
    text = "\n\n".join(parts)
    return text if text.strip() else Unreadable("it has no text; it may consist of images")


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
