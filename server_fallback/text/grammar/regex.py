"""Parses a regular expression in ECMAScript's syntax into a language.

Constructs beyond regular languages (lookaround, back references, word boundaries) are refused.
"""

from __future__ import annotations

import json
import re

from nearfar.compiler.errors import RequestError

from .automaton import Choice, Language, Repeat, Series, Set
from .characters import ANY, Ranges, intersect, single, subtract, union

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# White space and line ends past ASCII are left out, because a class here has all characters past ASCII, or few of them.
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D))
_CLASSES: dict[str, Ranges] = {
    "d": _DIGIT,
    "D": subtract(ANY, _DIGIT),
    "w": _WORD,
    "W": subtract(ANY, _WORD),
    "s": _SPACE,
    "S": subtract(ANY, _SPACE),
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_BRACES = re.compile(r"\{(\d+)(,(\d*))?\}")
_GROUP = re.compile(r"\?(:|<[^\W\d][\w$]*>)")
_CODE = {"x": re.compile(r"([0-9a-fA-F]{2})"), "u": re.compile(r"([0-9a-fA-F]{4})|\{([0-9a-fA-F]{1,6})\}")}
_ANYTHING = Repeat(Set(ANY), 0, None)
# Deeper than any useful pattern.
_MAX_DEPTH = 100


def parse_regex(pattern: str, where: str, *, search: bool = False) -> Language:
    """The texts that ``pattern`` matches completely, or with ``search``, those in which it matches somewhere.

    Raises RequestError for a pattern that is wrong or not regular; ``where`` names it.
    """
    return _Parser(pattern, where, search).parse()


class _Parser:
    def __init__(self, pattern: str, where: str, search: bool) -> None:
        self._pattern = pattern
        self._where = where
        self._search = search
        self._position = 0
        self._depth = 0

    def parse(self) -> Language:
        expression = self._alternation(top=True)
        if self._position < len(self._pattern):
            raise self._refusal("is not a regular expression: it has an unmatched parenthesis")
        return expression

    def _alternation(self, *, top: bool) -> Language:
        parts = [self._sequence(top)]
        while self._take("|"):
            parts.append(self._sequence(top))
        return Choice(tuple(parts))

    def _sequence(self, top: bool) -> Language:
        start = self._take("^")
        if start and not top:
            raise self._refusal("has an anchor inside a group; put ^ and $ at the ends")
        parts: list[Language] = [_ANYTHING] if self._search and top and not start else []
        end = False
        while self._peek() not in ("", "|", ")"):
            if end:
                raise self._refusal("goes on after $")
            if top and self._take("$"):
                end = True
            else:
                parts.append(self._quantified())
        return Series((*parts, _ANYTHING) if self._search and top and not end else tuple(parts))

    def _quantified(self) -> Language:
        of = self._atom()
        least, most = self._quantifier()
        if (least, most) == (1, 1):
            return of
        # A lazy quantifier matches the same texts.
        self._take("?")
        return Series(()) if most == 0 else Repeat(of, least, most)

    def _quantifier(self) -> tuple[int, int | None]:
        for character, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(character):
                return counts
        braces = _BRACES.match(self._pattern, self._position)
        if braces is None:
            return 1, 1
        self._position = braces.end()
        if max(map(len, braces.groups(""))) > 6:
            raise self._refusal("has a count that is too large")
        least = int(braces[1])
        most = least if braces[2] is None else int(braces[3]) if braces[3] else None
        if most is not None and most < least:
            raise self._refusal("is not a regular expression: the ends of a count are the wrong way round")
        return least, most

    def _atom(self) -> Language:
        if _BRACES.match(self._pattern, self._position):
            raise self._refusal("is not a regular expression: there is nothing to repeat")
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._set(self._bracket())
            case ".":
                return self._set(subtract(ANY, _LINE_ENDS))
            case "\\":
                return self._set(self._escape(in_bracket=False))
            case "^" | "$":
                raise self._refusal("has an anchor in the middle; put ^ and $ at the ends")
            case "*" | "+" | "?":
                raise self._refusal("is not a regular expression: there is nothing to repeat")
            case _:
                return self._set(single(character))

    def _group(self) -> Language:
        if re.compile(r"\?(=|!|<=|<!)").match(self._pattern, self._position):
            raise self._refusal("uses lookaround, which grammars do not support")
        named = _GROUP.match(self._pattern, self._position)
        if named is not None:
            self._position = named.end()
        elif self._peek() == "?":
            raise self._refusal("is not a regular expression: it has a kind of group that is not known")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._refusal("is nested too deep")
        inner = self._alternation(top=False)
        self._depth -= 1
        if not self._take(")"):
            raise self._refusal("is not a regular expression: a group has no end")
        return inner

    def _bracket(self) -> Ranges:
        negated = self._take("^")
        parts: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._member()
            is_range = self._peek() == "-" and self._pattern[self._position + 1 : self._position + 2] != "]"
            if not is_range or len(low) != 1 or low[0][0] != low[0][1]:
                parts += low
                continue
            self._position += 1
            high = self._member()
            if len(high) != 1 or high[0][0] != high[0][1]:
                raise self._refusal("has a range that ends in a class")
            if high[0][0] < low[0][0]:
                raise self._refusal("is not a regular expression: the ends of a range are the wrong way round")
            parts.append((low[0][0], high[0][0]))
        return subtract(ANY, parts) if negated else intersect(parts, ANY)

    def _member(self) -> Ranges:
        character = self._next()
        return self._escape(in_bracket=True) if character == "\\" else single(character)

    def _escape(self, *, in_bracket: bool) -> Ranges:
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if in_bracket and character == "b":
            return single("\b")
        if character in _CONTROLS and not (character == "0" and re.match(r"\d", self._peek())):
            return single(_CONTROLS[character])
        if character in _CODE:
            code = _CODE[character].match(self._pattern, self._position)
            if code is None:
                raise self._refusal(f"has an unfinished \\{character}")
            self._position = code.end()
            point = int(next(group for group in code.groups() if group), 16)
            return ((point, point),)
        if re.fullmatch(r"[A-Za-z0-9]", character):
            raise self._refusal(f"has \\{character}, which is not supported here")
        return single(character)

    def _set(self, ranges: Ranges) -> Language:
        allowed = intersect(union(ranges), ANY)
        if not allowed:
            raise self._refusal("has a class without a character")
        return Set(allowed)

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._refusal("is not a regular expression: it ends too early")
        self._position += 1
        return character

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _refusal(self, problem: str) -> RequestError:
        shown = json.dumps(self._pattern[:80], ensure_ascii=False)
        return RequestError(f"{self._where}: the pattern {shown} {problem}")
