"""The text of a Word document as HTML: headings, paragraphs and tables. Its parts are XML (ECMA-376, part 1, 17) in a
zip archive. web/page/documents/docx_html.ts does the same; tests/conformance/docx.json holds cases of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from io import BytesIO
from pathlib import Path
from xml.etree.ElementTree import Element, iterparse
from zipfile import ZipFile

MAIN, STYLES, NOTES = "word/document.xml", "word/styles.xml", ("word/footnotes.xml", "word/endnotes.xml")
# A small archive may unpack to any size.
MAX_PART_BYTES = 64_000_000
PREFIXES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
}
# What a reader does not see, or sees elsewhere: deleted and moved text, codes of fields, shapes for old versions.
UNSEEN = {"w:del", "w:moveFrom", "w:instrText", "mc:Fallback"}
TEXT = {"w:t", "m:t"}
INSTEAD = {"w:tab": " ", "w:br": "<br>", "w:cr": "<br>", "w:noBreakHyphen": "-"}
TABLE = {"w:tbl": "table", "w:tr": "tr", "w:tc": "td"}
HEADING = re.compile("heading ([1-9])", re.IGNORECASE)


def read_docx(path: Path) -> str | None:
    """The document as HTML; None for one with a part that is too large. Raises what `zipfile` and `ElementTree` raise,
    and KeyError for another archive.
    """
    with ZipFile(path) as archive:
        names = [name for name in (MAIN, STYLES, *NOTES) if name == MAIN or name in archive.NameToInfo]
        if any(archive.getinfo(name).file_size > MAX_PART_BYTES for name in names):
            return None
        parts = {name: archive.read(name) for name in names}
    levels = heading_levels(parts[STYLES]) if STYLES in parts else {}
    return "".join(docx_html(parts[name], levels) for name in (MAIN, *NOTES) if name in parts)


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
    """The HTML of a part's text, such as word/document.xml or word/footnotes.xml."""
    html = list[str]()
    # The text and the level of each open paragraph: a shape in a paragraph has paragraphs of its own.
    paragraphs = list[tuple[list[str], int | None]]()
    unseen = cells = 0
    for event, name, element in _tags(part):
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


def _attribute(element: Element, name: str) -> str:
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")
