r"""Every way to read a text: with the escapes of JSON undone, and without what a reader does not see or cannot
distinguish.

Tool arguments are JSON in a text, so ``\u0031`` can mean a digit. Invisible characters are removed by Unicode property:
default ignorables (with Hangul fillers, tags and variation selectors), formats, controls that are not white space,
surrogates, unassigned and private characters; and the blank Braille pattern. Other readings drop combining marks,
replace compatible forms (NFKC: fullwidth digits, ligatures, wide spaces), make every dash a hyphen and every wide space
a space, and decompose letters (NFKD: an e for e-acute). web/src/shared/decision/readings.ts does the same;
tests/conformance/router_private.json requires the same results of both.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator

import regex

# Separates the parts of a message. It is white space, so no reading removes it.
BOUNDARY = "\v"
# UAX #15, stream-safe text: no language has longer runs, and normalizing takes quadratic time in their length.
MAX_MARKS = 30
# unicodedata holds the interpreter's lock: about 2 ms for this many characters.
PIECE_CHARACTERS = 1 << 14
# NFKC makes 18 characters of U+FDFA; a text that grows by more than this is not searched.
MAX_GROWTH = 1 << 20
# If a text cannot be cut at a good point, a piece is at most this many characters longer.
MAX_UNCUT = 1 << 12

_INVISIBLE = regex.compile(r"[\p{DI}\u2800]|(?![\t-\r\x85])\p{C}")
_MARKS = regex.compile(r"\p{M}")
_MARK_RUNS = regex.compile(rf"(\p{{M}}{{{MAX_MARKS}}})\p{{M}}+")
_DASHES = regex.compile(r"[\p{Pd}\u2212]")
_SPACES = regex.compile(r"(?![\t-\r])\p{White_Space}")
_BOUNDARIES = regex.compile(r"\x0b{2,}")
# Characters that may combine with the one before them; a boundary is moved behind them.
_COMPOSING = r"\p{M}\u1160-\u11ff\u3130-\u318f\uff9e-\uffdc"
_EARLY_BOUNDARY = regex.compile(rf"\x0b([{_COMPOSING}](?:\x0b?[{_COMPOSING}])*)\x0b?")
_CUT = regex.compile(rf"[^{_COMPOSING}]")
_JSON_ESCAPE = regex.compile(r'\\\x0b?(?:u((?:\x0b?[0-9a-fA-F]){4})|(["\\/bfnrt]))')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def readings(text: str, *, ignore_case: bool) -> Iterator[str]:
    """Yield the text and every other way to read it, each reading once. No step holds the interpreter's lock for long.

    Raises TimeoutError for a text that compatible forms make too long to search.
    """
    known = set[str]()
    for way in _ways(text):
        # Patterns have both cases of their own letters. Capitals find letters that become others (final sigma) or two
        # (sharp s).
        for reading in (way, _in_pieces(str.upper, way)) if ignore_case and not way.isascii() else (way,):
            if reading not in known:
                known.add(reading)
                yield reading


def _ways(text: str) -> Iterator[str]:
    seen = _visible(text)
    bare = _without(_MARKS, seen)
    yield text
    yield from (seen, bare)
    yield from _folded(seen)
    for escaped in dict.fromkeys((text, seen, bare)):
        if "\\" in escaped:
            plain = json_unescaped(escaped)
            shown = _visible(plain)
            yield from (plain, shown, _without(_MARKS, shown))
            yield from _folded(shown)


def _folded(visible: str) -> Iterator[str]:
    if visible.isascii():
        return
    limited = _MARK_RUNS.sub(r"\1", visible, concurrent=True)
    folded = _in_pieces(lambda piece: unicodedata.normalize("NFKC", _SPACES.sub(" ", _DASHES.sub("-", piece))), limited)
    yield folded
    yield _without(_MARKS, _in_pieces(lambda piece: unicodedata.normalize("NFKD", piece), folded))


def _visible(text: str) -> str:
    visible = _without(_INVISIBLE, text)
    if BOUNDARY in visible:
        # A part may have no visible character, so two boundaries may meet.
        visible = _BOUNDARIES.sub(BOUNDARY, visible)
        visible = _EARLY_BOUNDARY.sub(lambda match: match[1].replace(BOUNDARY, "") + BOUNDARY, visible)
    return visible


def _without(characters: regex.Pattern[str], text: str) -> str:
    result: str = characters.sub("", text, concurrent=True)
    return result


def _in_pieces(change: Callable[[str], str], text: str) -> str:
    """Change a text piece by piece.

    A cut is made only before a character that does not combine with the one before it.
    """
    pieces, start, growth = [], 0, 0
    while start < len(text):
        end = start + PIECE_CHARACTERS
        cut = _CUT.search(text, end, end + MAX_UNCUT) if end < len(text) else None
        end = cut.start() if cut is not None else min(end + MAX_UNCUT, len(text))
        pieces.append(change(text[start:end]))
        growth += len(pieces[-1]) - (end - start)
        if growth > MAX_GROWTH:
            raise TimeoutError
        start = end
    return "".join(pieces)


def json_unescaped(text: str) -> str:
    """Undo one level of JSON escapes. A boundary within an escape is moved behind its character."""

    def character(escape: regex.Match[str]) -> str:
        plain = chr(int(escape[1].replace(BOUNDARY, ""), 16)) if escape[1] else _ESCAPED[escape[2]]
        return plain + BOUNDARY if BOUNDARY in escape[0] else plain

    plain: str = _JSON_ESCAPE.sub(character, text)
    # JSON writes a character above U+FFFF as two halves.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
