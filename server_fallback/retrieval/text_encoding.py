"""The text of a file whose encoding nobody names. web/page/text_encoding.ts has the same rule, and
tests/conformance/text_files.json holds cases of both.
"""

from __future__ import annotations

import codecs
import re

# Other control characters are in no text that a person wrote.
CONTROL = re.compile("[\0-\x08\x0e-\x1f\x7f]")
META_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
META_BYTES = 1024
# The encodings that a page may name.
OF_PAGES = re.compile(r"(?:cp|iso8859-|koi8-|mac-)\w+|big5\w*|euc_\w+|gb\w+|iso2022_jp|shift_jis|tis-620")
# What browsers read for these names (WHATWG, Encoding).
LABELS = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "shift_jis": "cp932", "gb2312": "gb18030",
          "gbk": "gb18030", "euc_kr": "cp949", "iso8859-11": "cp874", "tis-620": "cp874"}  # fmt: skip
ASCII_LETTERS = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))
HIGH = bytes(range(0x80, 0x100))


def decode_text(data: bytes, *, html: bool = False) -> str | None:
    """The text of these bytes, without a byte order mark; None if they are not text. In this order: UTF-16 with its
    mark, UTF-8, the encoding that an HTML page names, UTF-16 by its zero bytes, and Windows-1252, which includes
    Latin-1.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = _decoded(data, "utf-16")
        # The mark of UTF-32 begins with that of UTF-16.
        return None if text is None or "\0" in text else text
    text = _decoded(data, "utf-8-sig")
    if text is not None and "\0" not in text:
        return text
    named = META_CHARSET.search(data[:META_BYTES]) if html else None
    candidates = (
        named and _label(named[1].decode("latin-1")),
        _utf16_of(data),
        "cp1252" if _is_western(data) else None,
    )
    for encoding in candidates:
        found = encoding and _decoded(data, encoding)
        if found is not None and not CONTROL.search(found):
            return found
    return None


def maybe_utf16(data: bytes) -> bool:
    """Whether bytes may be UTF-16 without a mark, of a script whose high bytes are seldom zero, such as Japanese."""
    if data.count(0) * 20 >= len(data):
        return False
    texts = (_decoded(data, encoding) for encoding in ("utf-16-le", "utf-16-be"))
    return any(text is not None and not CONTROL.search(text) for text in texts)


def _decoded(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def _label(name: str) -> str | None:
    try:
        known = codecs.lookup(name).name
    except LookupError:
        return None
    return LABELS.get(known, known) if OF_PAGES.fullmatch(known) else None


def _utf16_of(data: bytes) -> str | None:
    """In UTF-16, the high bytes of spaces, digits and Latin letters are zero, and few low bytes are."""
    if len(data) % 2 == 1:
        return None
    even, odd = data[::2].count(0), data[1::2].count(0)
    if max(even, odd) * 20 < len(data) or min(even, odd) * 10 > max(even, odd):
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def _is_western(data: bytes) -> bool:
    """Western European words are mostly ASCII letters. In texts of other single-byte and multibyte encodings, most
    bytes are above ASCII.
    """
    high = len(data) - len(data.translate(None, HIGH))
    return high <= len(data) - len(data.translate(None, ASCII_LETTERS))
