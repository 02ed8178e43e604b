"""Grammar rules for JSON strings: their length, pattern and format, and property names that differ from a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import FOLLOWED, Intersection, Language, language_rule
from .characters import Ranges, single, subtract
from .ebnf import RuleBook, alternatives, char_class, literal, repeat
from .formats import SHORT_URI_LENGTH, UNRESTRICTED, short_uri, string_language
from .regex import parse_regex
from .schema_merge import json_text
from .schema_parts import count_of

# A string of at most this length has one rule for each character. Compiling tries the entire vocabulary on each rule.
_MOST_RULES = 16
_HEX = "[0-9a-fA-F]"
# The characters that a JSON string holds unescaped, and the ASCII ones among them.
_PLAIN = r'[^\x00-\x1f"\\]'
_PLAIN_ASCII: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))


class StringRules:
    """Adds the rules of strings to a book."""

    is_marked = False

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._other_keys: dict[tuple[str, ...], str] = {}

    def of(self, schema: Mapping[str, Any], where: str) -> str | None:
        """The expression of a string that is valid in ``schema``; None if no string is. Raises RequestError."""
        least, most = count_of(schema, "minLength", where) or 0, count_of(schema, "maxLength", where)
        if str(schema.get("format")) in UNRESTRICTED:
            schema = {key: value for key, value in schema.items() if key != "format"}
        if "pattern" in schema or "format" in schema:
            form = schema.get("format")
            language: Language | Intersection
            if "pattern" not in schema and form == "uri" and most is not None and most >= SHORT_URI_LENGTH:
                # The number of characters would be a state beside those of the format.
                language, most = short_uri(where), None
            else:
                language = string_language(schema.get("pattern"), form, where)
            self._book.demand(len('""'))
            rule = language_rule(self._book, language, "string", where, least, most)
            if rule is None and "pattern" in schema and "format" in schema:
                # The grammar's form of a format leaves out some of its texts, so this does not prove that none exists.
                raise RequestError(
                    f"{where}: the grammar of the format {json_text(schema['format'])} has no text that matches the "
                    "pattern; remove the format or the pattern",
                    keyword="format",
                )
            return quoted(rule)
        if most is not None and least > most:
            return None
        if least > 0:
            self._book.endings["a" * least] = None
        self._book.demand(least + len('""'))
        return f'"\\"" {self._characters(least, most)}'

    def any(self) -> str:
        return self._book.once("any_string", lambda: f'("\\"" {self._characters(0, None)}) {FOLLOWED}')

    def matching(self, pattern: str, where: str) -> str | None:
        """A string in which ``pattern`` matches somewhere."""
        return quoted(language_rule(self._book, parse_regex(pattern, where, search=True), "string", where))

    def any_key(self) -> str:
        return self.any()

    def key(self, name: str, _where: str) -> str:
        return literal(json_text(name))

    def constant(self, value: Any, _where: str) -> str:
        return json_text(value)

    def other_key(self, names: Iterable[str], _where: str) -> str:
        """A name that is not in ``names``. It has no escapes, so that no name has two spellings."""
        # A name that JSON must escape cannot occur.
        plain = tuple(name for name in names if json_text(name) == f'"{name}"')
        if plain not in self._other_keys:
            self._other_keys[plain] = self._book.add("key", f'("\\"" {self._unlike(plain)}) {FOLLOWED}')
        return self._other_keys[plain]

    def _unlike(self, rests: Sequence[str]) -> str:
        """The rest of a name that differs from all ``rests``, and its closing quote."""
        if not rests:
            return self._plain_rest()
        heads = list(dict.fromkeys(rest[0] for rest in rests if rest))
        plain = _PLAIN_ASCII
        for head in heads:
            plain = subtract(plain, single(head))
        return alternatives(
            [
                *([] if "" in rests else ['"\\""']),
                f"{char_class(plain)} {self._plain_rest()}",
                *([f"[^\\x00-\\x7f] {self._plain_rest()}"] if all(head < "\x80" for head in heads) else []),
                *(
                    f"{literal(head)} {self._unlike_rule([rest[1:] for rest in rests if rest.startswith(head)])}"
                    for head in heads
                ),
            ]
        )

    def _unlike_rule(self, rests: Sequence[str]) -> str:
        return self._book.add("key", f"({self._unlike(rests)}) {FOLLOWED}")

    def _plain_rest(self) -> str:
        return self._book.once("plain_rest", lambda: f'({_PLAIN}* "\\"") {FOLLOWED}')

    def _characters(self, least: int, most: int | None) -> str:
        """The ``least`` to ``most`` characters of a string, and its closing quote.

        Each character of a short string has a rule. Counted characters of a long string are never escaped, because
        xgrammar is slow if they may be.
        """
        if most is None and least == 0:
            return self._book.once("characters", lambda: self._one_more("characters", ends=True))
        if max(least, most or 0) > _MOST_RULES:
            character = self._book.once("plain_character", lambda: _PLAIN)
            return (
                f"{repeat(character, least, least)} characters"
                if most is None and self._characters(0, None)
                else f'{repeat(character, least, most)} "\\""'
            )
        following = self._characters(0, None) if most is None else self._book.once("quote", lambda: f'"\\"" {FOLLOWED}')
        for index in range((least if most is None else most) - 1, -1, -1):
            ends = index >= least and most is not None
            following = self._book.add("characters", self._one_more(following, ends=ends))
        return following

    def _one_more(self, following: str, *, ends: bool) -> str:
        """One character, then ``following``; or, if the string may end here, the closing quote.

        Escapes never spell surrogates, so that each escape is one character.
        """
        code = f'"u" ([0-9a-ce-fA-CE-F] {_HEX} {_HEX} {_HEX} | [dD] [0-7] {_HEX} {_HEX})'
        escape = self._book.once("escape", lambda: f'"\\\\" (["\\\\/bfnrt] | {code})')
        quote = '"\\"" | ' if ends else ""
        return f"({quote}{_PLAIN} {following} | {escape} {following}) {FOLLOWED}"


def quoted(inside: str | None) -> str | None:
    return None if inside is None else f'"\\"" {inside}'
