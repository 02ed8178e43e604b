"""The code that runs in the process that reads documents: text, Markdown, HTML and PDF. Files may be hostile, so they
may hang or use all memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from ..text.worker_loop import serve

TEXT, HTML, PDF = (".txt", ".text", ".md", ".markdown", ".rst"), (".html", ".htm", ".xhtml"), (".pdf",)
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
    return read_pdf if suffix in PDF else read_html if suffix in HTML else read_text


def read_text(path: Path) -> str | Unreadable:
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except UnicodeDecodeError:
        return Unreadable("it is not UTF-8 text")
    return Unreadable("it is not text") if "\0" in text else text.replace("\r\n", "\n")


def read_html(path: Path) -> str:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # What browsers assume for pages that name no encoding.
        text = data.decode("cp1252", "replace")
    parser = _PageText()
    parser.feed(text)
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
