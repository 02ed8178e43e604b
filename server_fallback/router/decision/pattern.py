r"""Patterns of private texts: the regular expressions that Python's re and JavaScript's RegExp read alike. They are
compiled for the library regex, which searches without the interpreter's lock and within a time limit.

Characters, `.`, `[...]`, `(...)`, `(?:...)`, `|`, `* + ? {n} {n,} {n,m}` and their lazy forms, `^` and `$` (the ends of
the text), `\b \B \d \D \w \W \s \S` in ASCII's meaning, `\t \n \r \f \v \xHH \uHHHH`, and a backslash before any sign.
Everything else (lookaround, back references, named groups, flags) is an error.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

import regex

from ...text.grammar.characters import ANY, Ranges, single, subtract, union
from .readings import BOUNDARY

MAX_CHARACTERS = 1000
# The maximum for the automaton of a pattern; a counted part has the states of all its copies. automaton.ts has the same
# limit.
MAX_STATES = 1000
MAX_DEPTH = 50
# Ranges are extended to both cases for the scripts up to here: Latin, Greek, Cyrillic.
LAST_CASED = 0x52F

_CLASSES: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20)),
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_COUNTS = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")
# The minimum and maximum number of repetitions; None is unlimited.
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CODES = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}")}


# The regular expression of a part of a pattern, and the number of states that it needs.
_Part = tuple[str, int]


def read_pattern(pattern: str) -> str:
    """Return the pattern unchanged. Raises ValueError if it is outside the subset or matches an empty text."""
    if compile_pattern(pattern, ignore_case=False).search(""):
        raise ValueError(
            f"the pattern {json.dumps(pattern, ensure_ascii=False)} matches the empty text, and so every text"
        )
    return pattern


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, *, ignore_case: bool, boundaries: bool = False) -> regex.Pattern[str]:
    """With ``boundaries``, a match may continue over a `readings.BOUNDARY`, and every assertion (^, $, \\b and \\B)
    holds there.

    Raises ValueError as `read_pattern` does.
    """
    return regex.compile(_Parser(pattern, ignore_case, boundaries).parse(), regex.ASCII)


class _Parser:
    """Writes every character as its code point, so that no engine can interpret it differently."""

    def __init__(self, pattern: str, ignore_case: bool, boundaries: bool) -> None:
        self._pattern = pattern
        self._ignore_case = ignore_case
        self._boundaries = boundaries
        self._position = 0
        self._depth = 0

    def parse(self) -> str:
        if len(self._pattern) > MAX_CHARACTERS:
            raise self._error(f"has more than {MAX_CHARACTERS} characters")
        expression, states = self._alternation()
        if self._position < len(self._pattern):
            raise self._error("has a closing parenthesis without an opening one")
        if states > MAX_STATES:
            raise self._error(f"needs more than {MAX_STATES} states; shorten it or reduce its counts")
        return expression

    def _alternation(self) -> _Part:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        states = sum(states for _, states in branches)
        return "|".join(expression for expression, _ in branches), states + (len(branches) > 1)

    def _sequence(self) -> _Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified())
        return "".join(expression for expression, _ in parts), sum(states for _, states in parts) or 1

    def _quantified(self) -> _Part:
        # In re, \B does not match an empty text (until Python 3.14); in JavaScript it does.
        for written, assertion in (("^", r"\A"), ("$", r"\Z"), (r"\b", r"\b"), (r"\B", r"(?!\b)")):
            if self._accept(written):
                # A lookahead matches in only one way, so this adds no backtracking.
                return rf"(?={assertion}|(?<=\x0b)|\x0b)" if self._boundaries else assertion, 1
        expression, states = self._atom()
        minimum, maximum, quantifier = self._quantifier()
        if self._peek() in ("*", "+", "?", "{"):
            raise self._error("has two quantifiers in a row")
        # Each optional copy has one state before it, and so does the end of a loop.
        more = 1 if maximum is None or maximum == 0 else maximum - minimum
        return expression + quantifier, states * (max(minimum, 1) if maximum is None else maximum) + more

    def _quantifier(self) -> tuple[int, int | None, str]:
        """The minimum and maximum number of repetitions (None: unlimited), and the quantifier as written."""
        if self._peek() in _QUANTIFIERS:
            quantifier = self._next()
            minimum, maximum = _QUANTIFIERS[quantifier]
        elif counts := _COUNTS.match(self._pattern, self._position):
            self._position = counts.end()
            quantifier, minimum = counts[0], int(counts[1])
            maximum = int(counts[3]) if counts[3] else None if counts[2] else minimum
            if maximum is not None and maximum < minimum:
                raise self._error("has a count whose maximum is below its minimum")
        else:
            return 1, 1, ""
        return minimum, maximum, quantifier + ("?" if self._accept("?") else "")

    def _atom(self) -> _Part:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._expression(self._bracket()), 1
            case ".":
                return self._expression(subtract(ANY, single("\n"))), 1
            case "]" | "{" | "}":
                raise self._error(f"has a {character} that must be written \\{character}")
            case "*" | "+" | "?":
                raise self._error("has a quantifier without anything to repeat")
            case _:
                self._position -= 1
                member, is_class = self._member()
                return self._expression(member if is_class else self._both_cases(member)), 1

    def _group(self) -> _Part:
        if self._peek() == "?" and not self._accept("?:"):
            raise self._error(
                "has a group that Python and JavaScript read differently: lookaround, names and flags are not supported"
            )
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("is nested too deeply")
        inner, states = self._alternation()
        self._depth -= 1
        if not self._accept(")"):
            raise self._error("has a group that is not closed")
        return f"(?:{inner})", states

    def _bracket(self) -> Ranges:
        negated = self._accept("^")
        parts: list[tuple[int, int]] = []
        while not self._accept("]"):
            member, is_class = self._member()
            if self._peek() == "-" and self._pattern[self._position + 1 : self._position + 2] != "]":
                self._position += 1
                end, ends_in_class = self._member()
                if is_class or ends_in_class or end[0][0] < member[0][0]:
                    raise self._error("has a range whose end is not a character above its start")
                member = ((member[0][0], end[0][0]),)
            parts += member if is_class else self._both_cases(member)
        if not parts:
            raise self._error("has an empty [], or a ] in it that must be written \\]")
        return subtract(ANY, parts) if negated else union(parts)

    def _member(self) -> tuple[Ranges, bool]:
        """Characters, and whether they are a class: a class is used as it is, whatever the case."""
        character = self._next()
        if character != "\\":
            return single(character), False
        character = self._next()
        if character.lower() in _CLASSES:
            named = _CLASSES[character.lower()]
            return (subtract(ANY, named) if character.isupper() else named), True
        if character in _CODES:
            code = _CODES[character].match(self._pattern, self._position)
            if code is None or 0xD800 <= int(code[0], 16) <= 0xDFFF:
                raise self._error(f"has a \\{character} without the digits of a character")
            self._position = code.end()
            return single(chr(int(code[0], 16))), False
        if character.isascii() and character.isalnum() and character not in _CONTROLS:
            raise self._error(f"has \\{character}, which Python and JavaScript read differently or reject")
        return single(_CONTROLS.get(character, character)), False

    def _both_cases(self, ranges: Ranges) -> Ranges:
        """The ranges with the other case of each character, if case is ignored."""
        if not self._ignore_case:
            return ranges
        both = [*ranges]
        for first, last in ranges:
            for point in range(first, max(first, min(last, LAST_CASED)) + 1):
                both += [(ord(form), ord(form)) for form in cases(chr(point))]
        return union(both)

    def _expression(self, ranges: Ranges) -> str:
        if not ranges or 0xD800 <= ranges[0][0] <= 0xDFFF:
            raise self._error("has a class that matches no character")
        if not self._boundaries:
            return _class(ranges)
        # A boundary matches only as the optional character after another one, so that there is one way to match it.
        others = subtract(ranges, single(BOUNDARY))
        return rf"(?:{_class(others)}\x0b?)" if others else "(?!)"

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("ends too early")
        self._position += 1
        return character

    def _accept(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"the pattern {json.dumps(self._pattern[:80], ensure_ascii=False)} {problem}")


def _class(ranges: Ranges) -> str:
    return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]"


def cases(character: str) -> set[str]:
    """A character in both cases, without those that become two characters."""
    forms = {character, character.lower(), character.upper()}
    forms |= {form.lower() for form in forms} | {form.upper() for form in forms}
    return {form for form in forms if len(form) == 1}
