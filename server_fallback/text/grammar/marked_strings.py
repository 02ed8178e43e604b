"""Grammar rules for strings without escapes, which end at a marker that they cannot contain.

Formats of tool calls have such strings: Gemma 4's between ``<|"|>``, and the text of an XML element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import Intersection, Language, language_rule
from .ebnf import RuleBook, literal, repeat
from .formats import string_language
from .regex import parse_regex
from .schema_merge import json_text
from .schema_parts import count_of

_NAME = "[a-zA-Z0-9_-]"


class MarkedStrings:
    """Adds the rules of strings to a book, in the place of `StringRules`.

    A string is ``begin``, any text without ``forbidden``, and ``end``. The first character of
    ``forbidden`` occurs in it only once. Property names are bare words.
    """

    is_marked = True

    def __init__(self, book: RuleBook, begin: str, end: str, forbidden: str) -> None:
        assert forbidden[0] not in forbidden[1:]
        self._book, self._begin, self._end, self._forbidden = book, begin, end, forbidden
        book.endings[end] = None

    def of(self, schema: Mapping[str, Any], where: str) -> str | None:
        """The expression of a string that is valid in ``schema``; None if no string is. Raises RequestError.

        A string with a pattern, a format or a length contains no start of ``forbidden``.
        """
        least, most = count_of(schema, "minLength", where) or 0, count_of(schema, "maxLength", where)
        self._book.demand(len(self._begin) + least + len(self._end))
        first, second = self._forbidden[0], self._forbidden[1]
        if "pattern" in schema or "format" in schema:
            language = string_language(schema.get("pattern"), schema.get("format"), where)
            safe = parse_regex(f"([^{first}]|{first}+[^{first}{_escaped(second)}])*{first}*", where)
            parts: tuple[Language, ...] = language.parts if isinstance(language, Intersection) else (language,)
            rule = language_rule(self._book, Intersection((*parts, safe)), "answer", where, least, most)
            if rule is None:
                raise RequestError(
                    f"{where}: no text of the pattern or format can be written in this model's tool calls; remove it",
                    keyword="pattern" if "pattern" in schema else "format",
                )
            return f"{literal(self._begin)} {rule} {literal(self._end)}"
        if most is not None and least > most:
            return None
        if least == 0 and most is None:
            return self.any()
        self._book.endings["a" * least + self._end] = None
        return f"{literal(self._begin)} {repeat(_except(first), least, most)} {literal(self._end)}"

    def any(self) -> str:
        return self._book.once("marked_string", lambda: f"{literal(self._begin)} {self._rest(0)}")

    def any_key(self) -> str:
        """Any property name that is a bare word."""
        return self._book.once("bare_key", lambda: f"{_NAME}+")

    def key(self, name: str, where: str) -> str:
        """Raises RequestError for a name that is not a bare word."""
        if not re.fullmatch(f"{_NAME}+", name):
            raise RequestError(
                f"{where}: the property {json_text(name)} cannot be written in this model's tool calls; use letters, "
                "digits, '_' and '-'"
            )
        return literal(name)

    def other_key(self, names: Iterable[str], where: str) -> str:
        """Raises RequestError if there are ``names``, because the rules cannot exclude them."""
        if any(True for _ in names):
            raise RequestError(
                f"{where}: additionalProperties beside properties is not supported in this model's tool calls; "
                "set it to false",
                keyword="additionalProperties",
            )
        return self.any_key()

    def matching(self, _pattern: str, where: str) -> str:
        raise RequestError(
            f"{where}: patternProperties is not supported in this model's tool calls; remove it",
            keyword="patternProperties",
        )

    def constant(self, value: Any, where: str) -> str:
        """The text of a constant. Raises RequestError for one that cannot be written."""
        if isinstance(value, str):
            if self._forbidden in value:
                raise RequestError(f"{where}: a constant contains {self._forbidden!r}, which ends a tool call's string")
            return f"{self._begin}{value}{self._end}"
        if isinstance(value, list):
            return f"[{','.join(self.constant(item, where) for item in value)}]"
        if isinstance(value, dict):
            for name in value:
                self.key(name, where)
            return f"{{{','.join(f'{name}:{self.constant(item, where)}' for name, item in value.items())}}}"
        return json_text(value)

    def _rest(self, matched: int) -> str:
        """The rest of a string after the first ``matched`` characters of ``forbidden``, and its end."""

        def body() -> str:
            first, following = self._forbidden[0], self._forbidden[matched]
            others = first if matched == 0 else first + following
            ways = [literal(self._end), f"{_except(others)} {self._rest(0)}", f"{literal(first)} {self._rest(1)}"]
            if 0 < matched < len(self._forbidden) - 1:
                ways.append(f"{literal(following)} {self._rest(matched + 1)}")
            return " | ".join(ways)

        return self._book.once(f"marked_rest_{matched}", body)


def _except(characters: str) -> str:
    return f"[^{literal(characters)[1:-1]}]"


def _escaped(character: str) -> str:
    return f"\\{character}" if character in "\\^$.*+?()[]{}|/" else character
