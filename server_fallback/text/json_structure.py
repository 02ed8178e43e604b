"""Checks the structure of JSON before it is parsed, because a parser holds the interpreter's lock until it has read
everything, and makes an object of each part.
"""

from __future__ import annotations

# Deeper than any schema that a person writes, and far below Python's recursion limit.
MAX_DEPTH = 100
# Strings (keys too), objects, arrays and fractions. Parsing so many takes about 20 ms. Numbers without a fraction are
# not counted, because prompts are lists of token ids. 4,096 messages with one text part each have 41,000 parts.
MAX_PARTS = 65_536
_OPENING = b"[{"
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def structure_error(text: bytes) -> str | None:
    """What is wrong with the structure of JSON in UTF-8, in words that follow its name; None if nothing is.

    It takes a few milliseconds for 4 MB, whatever the text is. In a text that is not JSON, the part before the first
    mistake is measured correctly, and a parser reads no more than that.
    """
    # Marks inside strings are counted too: this is the most that there can be.
    opening = text.count(b"{") + text.count(b"[")
    if opening <= MAX_DEPTH and opening + text.count(b'"') // 2 + text.count(b".") <= MAX_PARTS:
        return None
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = text.count(b'"') // 2
    if strings <= MAX_PARTS:
        # Every second part between quotes is outside strings.
        text = b"".join(text.split(b'"')[::2])
    if strings + text.count(b"{") + text.count(b"[") + text.count(b".") > MAX_PARTS:
        return f"has more than {MAX_PARTS:,} strings, objects, arrays and fractions; send less in one request"
    depth = 0
    for bracket in text.translate(None, _ALL_BUT_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > MAX_DEPTH:
            return f"nests deeper than {MAX_DEPTH} levels"
    return None
