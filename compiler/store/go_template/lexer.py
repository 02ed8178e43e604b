"""Cuts a Go template into texts and actions, and actions into words: the lexical rules of Go's text/template.

https://pkg.go.dev/text/template#hdr-Text_and_spaces, and the literals of https://go.dev/ref/spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NoReturn

from ...runtime.errors import RequestError

# What `{{-` and `-}}` remove.
BLANK = " \t\r\n"
OPEN, CLOSE = "{{", "}}"
Kind = Literal["field", "variable", "word", "text", "number", "symbol", "space", "end"]
_WORD = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<field>\.[^\W\d]\w*)
      | (?P<variable>\$\w*)
      | (?P<quoted>"(?:[^"\\\n]|\\.)*")
      | (?P<raw>`[^`]*`)
      | (?P<number>[-+]?\d[\w.+]*)
      | (?P<word>[^\W\d]\w*)
      | (?P<symbol>:=|[().,|=])""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"[ \t\r\n]*/\*")
_END_OF_COMMENT = re.compile(r"(?P<trim>[ \t\r\n]-)?\}\}")
# Go's integers have 64 bits.
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_ESCAPE = re.compile(r"\\(?:x[0-7][0-9a-fA-F]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}


class Source:
    """A template's text, for errors that name a place in it. ``line`` is that of its first character."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self._line = text, line

    def refuse(self, at: int, problem: str) -> NoReturn:
        """Raises RequestError for what begins at the index ``at``."""
        before = self.text[:at]
        line, column = self._line + before.count("\n"), at - (before.rfind("\n") + 1) + 1
        raise RequestError(
            f"TEMPLATE: line {line}, column {column}: {problem}", code="invalid_template", line=line, column=column
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A word of an action. ``value`` is the name of a field or variable, without its dot, or a literal's value."""

    kind: Kind
    value: str | int
    at: int


@dataclass(frozen=True, slots=True)
class Text:
    """What stands between actions, without the blanks that their markers remove."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """The words between `{{` and `}}`; the last has the kind "end"."""

    tokens: tuple[Token, ...]
    at: int


def cut(source: Source) -> Iterator[Text | Action]:
    """The parts of a template, without comments. Raises RequestError with the place of what is no Go template."""
    text, at, trims = source.text, 0, False
    while True:
        start = text.find(OPEN, at)
        piece = text[at:] if start < 0 else text[at:start]
        piece = piece.lstrip(BLANK) if trims else piece
        if start < 0:
            if piece:
                yield Text(piece)
            return
        inner = start + len(OPEN)
        if text.startswith("-", inner) and text[inner + 1 : inner + 2] in BLANK and inner + 1 < len(text):
            piece, inner = piece.rstrip(BLANK), inner + 2
        if piece:
            yield Text(piece)
        if _COMMENT.match(text, inner) is not None:
            at, trims = _comment(source, start, inner)
            continue
        tokens, at, trims = _words(source, start, inner)
        yield Action(tuple(tokens), start)


def _comment(source: Source, start: int, inner: int) -> tuple[int, bool]:
    """The index behind a comment's action, and whether it removes the blanks that follow."""
    text = source.text
    opened = text.index("/*", inner)
    closed = text.find("*/", opened + 2)
    if closed < 0:
        source.refuse(start, "the comment is not closed; end it with */}}")
    end = _END_OF_COMMENT.match(text, closed + 2)
    if end is None:
        source.refuse(closed, "a comment must be the only content of an action; write }} or -}} directly behind */")
    return end.end(), end["trim"] is not None


def _words(source: Source, start: int, inner: int) -> tuple[list[Token], int, bool]:
    """The words of an action, the index behind it, and whether it removes the blanks that follow."""
    text, tokens, at = source.text, list[Token](), inner
    while True:
        if text.startswith(CLOSE, at):
            return [*tokens, Token("end", "", at)], at + len(CLOSE), False
        if text.startswith("-}}", at) and at > inner - 1 and text[at - 1] in BLANK:
            return [*tokens, Token("end", "", at)], at + 3, True
        if at >= len(text):
            source.refuse(start, "the action is not closed; end it with }}")
        found = _WORD.match(text, at)
        if found is None:
            what = "the text is not closed" if text[at] in '"`' else f"{text[at]!r} is not expected in an action"
            source.refuse(at, what)
        kind, word = str(found.lastgroup), found[0]
        if kind == "space":
            tokens.append(Token("space", word, at))
        elif kind == "quoted":
            tokens.append(Token("text", _unquoted(source, word, at), at))
        elif kind == "raw":
            tokens.append(Token("text", word[1:-1], at))
        elif kind == "number":
            if _INTEGER.fullmatch(word) is None:
                source.refuse(at, f"{word[:40]} is not supported; write an integer in decimal, of at most 18 digits")
            tokens.append(Token("number", int(word), at))
        elif kind in ("field", "variable"):
            tokens.append(Token("field" if kind == "field" else "variable", word[1:], at))
        else:
            tokens.append(Token("word" if kind == "word" else "symbol", word, at))
        at = found.end()


def _unquoted(source: Source, literal: str, at: int) -> str:
    def decoded(found: re.Match[str]) -> str:
        letter, digits = found[0][1], found[0][2:]
        code = _NAMED.get(letter)
        if code is not None:
            return code
        number = int(digits, 16) if digits else -1
        if not 0 <= number < 0x110000 or 0xD800 <= number < 0xE000:
            source.refuse(at + found.start() + 1, f"{found[0]} is not an escape of Go's texts")
        return chr(number)

    return _ESCAPE.sub(decoded, literal[1:-1])
