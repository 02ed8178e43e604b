"""Reading documents in a process with limits, hostile ones too, and cutting them into passages."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import pytest
from conftest import ROOT
from fake_source import text_model
from pdf_files import pdf_of

from nearfar.server_fallback.retrieval.document_worker import MAX_CHARACTERS, Unreadable, read
from nearfar.server_fallback.retrieval.documents import DocumentReader, files_of
from nearfar.server_fallback.retrieval.docx_html import docx_html, heading_levels
from nearfar.server_fallback.retrieval.file_kinds import not_text, unreadable_kind
from nearfar.server_fallback.retrieval.passages import passages_of
from nearfar.server_fallback.retrieval.text_encoding import decode_text

PAGE = """<!doctype html><title>no</title><style>b{}</style><h1>Head &amp; shoulders</h1>
<p>One <b>bold</b>
   word<br>next<script>alert("x")</script></p><ul><li>a<li>b</ul>"""
CONFORMANCE = ROOT / "tests" / "conformance"
TEXT_FILES: list[dict[str, Any]] = json.loads((CONFORMANCE / "text_files.json").read_text())["cases"]
WORD: list[dict[str, Any]] = json.loads((CONFORMANCE / "docx.json").read_text())["cases"]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_texts_pages_and_pdfs_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb")
    (tmp_path / "b.md").write_bytes("c é".encode("utf-16"))
    (tmp_path / "c.html").write_text(PAGE)
    (tmp_path / "old.htm").write_bytes(b"caf\xe9")
    assert read(tmp_path / "a.txt") == "a\nb"
    assert read(tmp_path / "b.md") == "c é"
    assert read(tmp_path / "c.html") == "Head & shoulders\n\nOne bold word\nnext\n\na\n\nb"
    assert read(tmp_path / "old.htm") == "café"
    assert read(written(tmp_path / "d.pdf", pdf_of(b"BT /F1 12 Tf 20 200 Td (Hello PDF) Tj ET"))) == "Hello PDF"
    assert isinstance(read(written(tmp_path / "empty.pdf", pdf_of(b""))), Unreadable)


@pytest.mark.parametrize("case", TEXT_FILES, ids=[case["name"] for case in TEXT_FILES])
def test_a_file_is_decoded_or_refused_with_the_reason(case: dict[str, Any]) -> None:
    name, data = case["name"], base64.b64decode(case["base64"])
    refused = unreadable_kind(name, data)
    text = decode_text(data, html=name.endswith(".html")) if refused is None else None
    assert text == case["text"]
    if text is None:
        assert (refused or not_text(data)) == case["reason"]


@pytest.mark.parametrize("case", WORD, ids=[case["about"] for case in WORD])
def test_the_parts_of_a_word_document_are_read(case: dict[str, Any]) -> None:
    levels = heading_levels(case["styles"].encode()) if case["styles"] else {}
    part = case["document"].encode(case["encoding"])
    if case["html"] is None:
        with pytest.raises((ValueError, ParseError)):
            docx_html(part, levels)
    else:
        assert docx_html(part, levels) == case["html"]


OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
NOT_WORD = Unreadable("it is not a Word document that can be read; save it again, or add its text")
TOO_LONG = Unreadable("it has more than 5,000,000 characters of text; add a part of it")


def relations(**targets: str) -> str:
    entries = (f'<r Type="{OFFICE}/{kind}" Target="{target}"/>' for kind, target in targets.items())
    return f"<r:Relationships xmlns:r='urn:r'>{''.join(entries)}</r:Relationships>"


PARTS = {
    "_rels/.rels": relations(officeDocument="word/document.xml"),
    "word/_rels/document.xml.rels": relations(styles="styles.xml", footnotes="/word/footnotes.xml"),
    "word/document.xml": WORD[0]["document"],
    "word/styles.xml": WORD[0]["styles"],
}


def test_word_documents_are_read_and_other_archives_refused(tmp_path: Path) -> None:
    assert read(word(tmp_path / "a.docx", PARTS)) == "Plan\n\nEins\n\ntief\n\nText"
    notes = WORD[1]["document"].replace("w:document", "w:footnotes")
    assert read(word(tmp_path / "b.DOC", {**PARTS, "word/footnotes.xml": notes})) == (
        "Plan\n\nEins\n\ntief\n\nText\n\ntwo words a\nb-c"
    )
    named = {
        "_rels/.rels": relations(officeDocument="Word/My%20text.xml"),
        "word/_rels/my text.xml.rels": relations(footnotes="../notes.xml"),
        "word/my text.xml": WORD[1]["document"],
        "notes.xml": notes,
    }
    assert read(word(tmp_path / "c.docx", named)) == "two words a\nb-c\n\ntwo words a\nb-c"
    bomb = word(tmp_path / "bomb.docx", {**PARTS, "word/document.xml": " " * 64_000_001})
    assert bomb.stat().st_size < 100_000
    assert read(bomb) == Unreadable("it unpacks to more than 64 MB; add a part of it")
    long = WORD[0]["document"].replace("Text", "x" * MAX_CHARACTERS)
    assert read(word(tmp_path / "long.docx", {**PARTS, "word/document.xml": long})) == TOO_LONG
    for parts in ({"a.xml": ""}, {**PARTS, "word/document.xml": "<w/>"}):
        assert read(word(tmp_path / "d.docx", parts)) == NOT_WORD
    assert isinstance(read(word(tmp_path / "e.xlsx", PARTS)), Unreadable)


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_part_whose_stated_length_is_wrong_is_refused(difference: int, tmp_path: Path) -> None:
    data = bytearray(word(tmp_path / "a.docx", PARTS).read_bytes())
    length = data.rindex(b"word/document.xml") - 46 + 24
    stated = len(PARTS["word/document.xml"])
    assert data[length : length + 4] == stated.to_bytes(4, "little")
    data[length : length + 4] = (stated + difference).to_bytes(4, "little")
    assert read(written(tmp_path / "b.docx", bytes(data))) == NOT_WORD


def test_the_reasons_say_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    again = "export it again, or add its text"
    assert read(written(tmp_path / "a.pdf", b"")) == Unreadable(f"it is empty; {again}")
    assert read(written(tmp_path / "b.pdf", b"%PDF-1.4 nothing")) == Unreadable(
        f"it is not a PDF that can be read; {again}"
    )
    assert read(written(tmp_path / "c.docx", b"PK\x03\x04nothing")) == NOT_WORD
    assert read(written(tmp_path / "d.txt", b"x" * (MAX_CHARACTERS + 1))) == TOO_LONG
    found = read(tmp_path)
    assert isinstance(found, Unreadable)
    assert found.reason == "it cannot be opened (Is a directory); make it readable for this user"
    # The content decides, not the name.
    assert read(written(tmp_path / "e.docx", pdf_of(b"BT /F1 12 Tf 20 200 Td (Hello PDF) Tj ET"))) == "Hello PDF"
    page = read(written(tmp_path / "f.docx", b"<html><p>a</p></html>"))
    assert isinstance(page, Unreadable)
    assert "is a web page or XML" in page.reason


def test_texts_are_bounded_as_in_the_page() -> None:
    assert json.loads((CONFORMANCE / "text_files.json").read_text())["max_characters"] == MAX_CHARACTERS


def word(path: Path, parts: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def test_a_hostile_document_is_bounded_and_the_next_one_is_read(tmp_path: Path) -> None:
    # 60 MB of operators from 60 kB: minutes of parsing.
    bomb = written(tmp_path / "bomb.pdf", pdf_of(b"BT /F1 12 Tf (a) Tj ET\n" * 2_500_000, compressed=True))
    (tmp_path / "a.txt").write_text("fine")

    async def work() -> None:
        reader = DocumentReader(seconds=1.5)
        try:
            found = await reader.read(bomb)
            assert isinstance(found, Unreadable)
            assert any(reason in found.reason for reason in ("more than 1.5 s", "memory", "can be read"))
            assert await reader.read(tmp_path / "a.txt") == "fine"
        finally:
            reader.close()

    asyncio.run(work())


def test_hidden_files_links_out_of_the_folder_and_other_types_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    for name in ("b.md", "a.TXT", "sub/c.pdf", ".hidden/d.md", ".e.md", "f.exe", "g.docx", "h.xlsx"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (tmp_path / "secret.txt").write_text("x")
    if sys.platform != "win32":
        (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
        (folder / "own.md").symlink_to(folder / "b.md")
    assert [name for name, _ in files_of(folder)] == [
        "a.TXT",
        "b.md",
        "g.docx",
        # It is reported as unreadable.
        "h.xlsx",
        "own.md",
        "sub/c.pdf",
    ]


@pytest.mark.parametrize("limit", [7, 40, 1000])
def test_passages_cover_the_text_within_the_limit(limit: int, tmp_path: Path) -> None:
    tokenizer = text_model(tmp_path).tokenizer
    text = "# Head\n\nFirst sentence. Second one! Third?\n\n" + "x" * 95 + " end of it.\n\n\n  \n\nLast\n"
    spans = passages_of(text, tokenizer, limit)
    assert all(text[span.begins : span.ends] == span.text == span.text.strip() != "" for span in spans)
    assert all(len(tokenizer.encode(span.text, add_special_tokens=False)) <= limit for span in spans)
    covered = {at for span in spans for at in range(span.begins, span.ends)}
    assert all(at in covered for at, character in enumerate(text) if not character.isspace())
    assert (len(spans) == 1) == (limit == 1000)
    assert passages_of(" \n\n ", tokenizer, limit) == passages_of("", tokenizer, limit) == []


def test_a_passage_repeats_the_end_of_the_one_before(tmp_path: Path) -> None:
    tokenizer = text_model(tmp_path).tokenizer
    text = "A long first sentence of it. Hm. Another long sentence. End."
    spans = passages_of(text, tokenizer, 40)
    assert [span.text for span in spans] == ["A long first sentence of it. Hm.", "Hm. Another long sentence. End."]
