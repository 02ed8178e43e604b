"""The text of a Word document as HTML: headings, paragraphs and tables. Its parts are XML (ECMA-376, part 1, 17) in a
zip archive. web/page/documents/docx_html.ts does the same; tests/conformance/docx.json holds cases of both.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from html import escape
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import Element, iterparse
from zipfile import BadZipFile, ZipFile

# Of a part: a small archive may unpack to any size.
MAX_PART_BYTES = 64_000_000
# Behind this, the names of a part's relations have their kind (ECMA-376, part 1, 15.2, and part 4).
RELATION = re.compile(
    r"http://(?:schemas\.openxmlformats\.org/officeDocument/2006|purl\.oclc\.org/ooxml/officeDocument)/relationships/(\w+)"
)
PREFIXES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
}
ROOTS = {"w:document", "w:footnotes", "w:endnotes"}
# What a reader does not see, or sees elsewhere: deleted and moved text, codes of fields, shapes for old versions.
UNSEEN = {"w:del", "w:moveFrom", "w:instrText", "mc:Fallback"}
TEXT = {"w:t", "m:t"}
INSTEAD = {"w:tab": " ", "w:br": "<br>", "w:cr": "<br>", "w:noBreakHyphen": "-"}
TABLE = {"w:tbl": "table", "w:tr": "tr", "w:tc": "td"}
HEADING = re.compile("heading ([1-9])", re.IGNORECASE)


def read_docx(path: Path) -> str | None:
    """The document as HTML; None for one with a part that is too large. Raises what `zipfile` and `ElementTree` raise,
    and ValueError, for a damaged document and for another archive.
    """
    with ZipFile(path) as archive:
        package = _Package(archive)
        main = package.related("").get("officeDocument", "")
        others = package.related(main)
        parts = [package.part(others.get(kind, "")) for kind in ("styles", "footnotes", "endnotes")]
        text = package.part(main)
    if package.is_too_large:
        return None
    styles, *notes = parts
    levels = heading_levels(styles) if styles else {}
    return "".join(docx_html(part, levels) for part in (text, *notes) if part or part is text)


class _Package:
    """The parts of a document, and their relations (ECMA-376, part 2). Names are of any case."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._entries = {entry.filename.lower(): entry for entry in archive.infolist()}
        self.is_too_large = False

    def part(self, path: str) -> bytes:
        """Empty for one that does not exist or is too large. Raises BadZipFile for a length that is not the stated
        one.
        """
        entry = self._entries.get(path.lower())
        if entry is None:
            return b""
        if entry.file_size > MAX_PART_BYTES:
            self.is_too_large = True
            return b""
        part = self._archive.read(entry)
        if len(part) != entry.file_size:
            raise BadZipFile("a part is shorter than it states")
        return part

    def related(self, path: str) -> dict[str, str]:
        """The paths of the parts that belong to the part at ``path``, by the kind of their relation; "" is the
        package.
        """
        folder, _, name = path.rpartition("/")
        xml, paths = self.part(posixpath.join(folder, "_rels", f"{name}.rels")), dict[str, str]()
        for event, _, element in _tags(xml) if xml else ():
            kind = RELATION.fullmatch(element.get("Type", ""))
            if event == "start" and kind and element.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, unquote(element.get("Target", ""))))
                paths.setdefault(kind[1], target.lstrip("/"))
        return paths


def heading_levels(styles: bytes) -> dict[str, int]:
    """The levels of the styles that are headings, by their ids, from word/styles.xml."""
    levels, style = dict[str, int](), ""
    for event, name, element in _tags(styles):
        if name == "w:style" and event == "start":
            style = _attribute(element, "styleId")
        title = _attribute(element, "val") if name == "w:name" else ""
        found = HEADING.fullmatch(title)
        if found or title.lower() == "title":
            levels[style] = min(int(found[1]) if found else 1, 6)
    return levels


def docx_html(part: bytes, levels: Mapping[str, int]) -> str:
    """The HTML of a part's text, such as word/document.xml. Raises ParseError for damaged XML, and ValueError for parts
    of other files.
    """
    html = list[str]()
    # The text and the level of each open paragraph: a shape in a paragraph has paragraphs of its own.
    paragraphs = list[tuple[list[str], int | None]]()
    unseen = cells = depth = 0
    for event, name, element in _tags(part):
        if depth == 0 and name not in ROOTS:
            raise ValueError("the root is not of a Word document")
        depth += 1 if event == "start" else -1
        if name in UNSEEN:
            unseen += 1 if event == "start" else -1
        if unseen:
            continue
        if name in TABLE:
            html.append(f"<{TABLE[name]}>" if event == "start" else f"</{TABLE[name]}>")
            cells += (1 if event == "start" else -1) if name == "w:tc" else 0
        if name == "w:p":
            if event == "start":
                paragraphs.append(([], None))
            else:
                html.append(_block(*paragraphs.pop(), in_cell=cells > 0))
        elif paragraphs:
            text, _ = paragraphs[-1]
            if name == "w:pStyle":
                paragraphs[-1] = text, levels.get(_attribute(element, "val"))
            elif event == "end" and name in TEXT:
                text.append(escape(element.text or "", quote=False))
            elif event == "start" and any(text):
                text.append(INSTEAD.get(name, ""))
    return "".join(html)


def _block(parts: list[str], level: int | None, *, in_cell: bool) -> str:
    text = "".join(parts).strip()
    if not text:
        return ""
    # A row is one line.
    if in_cell:
        return f"{text} "
    element = "p" if level is None else f"h{level}"
    return f"<{element}>{text}</{element}>"


def _tags(xml: bytes) -> Iterator[tuple[str, str, Element]]:
    for event, element in iterparse(BytesIO(xml), ("start", "end")):
        namespace, _, name = element.tag.rpartition("}")
        yield event, f"{PREFIXES.get(namespace[1:], '')}:{name}", element
        if event == "end":
            # The tree of a long document needs many times its memory.
            element.clear()


def _attribute(element: Element, name: str) -> str:
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")
