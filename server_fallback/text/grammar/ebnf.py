"""EBNF as xgrammar reads it: a book of rules, and the spelling of literals and of sets of characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from nearfar.compiler.errors import RequestError

from .characters import ANY, Ranges, intersect, subtract

ASCII: Ranges = ((0, 0x7F),)
PAST_ASCII = subtract(ANY, ASCII)
# Characters past ASCII that are written out one by one.
_MOST_SINGLE = 2000
# Past this, compiling takes seconds.
_MAX_SIZE = 400_000
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ITEM = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z_]\w*|[()|*+?]|\{\d+(?:,\d*)?\}')


class RuleBook:
    """Rules by name; ``root`` is where a text begins."""

    def __init__(self) -> None:
        # Texts that may complete an answer, for the search of completions, in the order in which they were added.
        self.endings: dict[str, None] = {}
        # The most bytes from a state of an automaton to its end, and the bytes that all other parts need at least, each
        # once.
        self.longest_end = 0
        self.demanded = 0
        # Whether white space may stand between the parts of a value.
        self.spaced = True
        self._rules: dict[str, str] = {}
        self._size = 0

    def reserve(self, hint: str) -> str:
        """A name that no rule has yet."""
        name = f"{hint}_{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> str:
        """Raises RequestError if the rules become too large."""
        self._size += len(body)
        if self._size > _MAX_SIZE:
            raise RequestError("the grammar is too large; make the schema smaller, or its optional parts fewer")
        self._rules[name] = body
        return name

    def add(self, hint: str, body: str) -> str:
        return self.define(self.reserve(hint), body)

    def once(self, name: str, body: Callable[[], str]) -> str:
        """The name of a shared rule, which the first call adds."""
        if name not in self._rules:
            self._rules[name] = ""
            self.define(name, body())
        return name

    def demand(self, num_bytes: int) -> None:
        """Count bytes that a choice may add to the shortest completion."""
        self.demanded += num_bytes

    def rooted(self, expression: str) -> str:
        """The text of the grammar. Raises RequestError if every text of the expression is infinite."""
        if not self._ends(expression):
            raise RequestError(
                "the JSON schema allows no finite value: a required part contains itself; make that part optional"
            )
        return f"root ::= {expression}\n" + "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())

    def _ends(self, expression: str) -> bool:
        """Whether any text of the expression is finite. Finds the rules with a finite text until no more are found."""
        bodies = {name: _ITEM.findall(body) for name, body in self._rules.items()}
        ending: set[str] = set()
        count = -1
        while count < len(ending):
            count = len(ending)
            # Most rules name earlier rules.
            ending.update(
                name for name, items in bodies.items() if name not in ending and _Reader(items, ending).alternatives()
            )
        return _Reader(_ITEM.findall(expression), ending).alternatives()


class _Reader:
    """Whether an expression has a finite text, given the rules that have one."""

    def __init__(self, items: Sequence[str], ending: set[str]) -> None:
        self._items = items
        self._ending = ending
        self._position = 0

    def alternatives(self) -> bool:
        ends = self._sequence()
        while self._peek() == "|":
            self._position += 1
            ends = self._sequence() or ends
        return ends

    def _sequence(self) -> bool:
        ends = True
        while self._peek() not in ("", "|", ")"):
            ends = self._item() and ends
        return ends

    def _item(self) -> bool:
        item = self._peek()
        self._position += 1
        if item == "(":
            ends = self.alternatives()
            self._position += 1
        else:
            ends = item[0] in '"[' or item in self._ending
        if self._peek()[:1] in ("*", "?", "{", "+"):
            ends = ends or self._peek()[:2] in ("*", "?", "{0")
            self._position += 1
        return ends

    def _peek(self) -> str:
        return self._items[self._position] if self._position < len(self._items) else ""


def literal_texts(body: str) -> list[str]:
    """The string literals of some EBNF, without their quotes and with their escapes."""
    return _LITERAL.findall(body)


def literal(text: str) -> str:
    return f'"{"".join(map(_spell, text))}"'


def char_class(ranges: Ranges) -> str:
    """A class of ASCII characters."""
    parts = (
        _spell(chr(first)) if first == last else f"{_spell(chr(first))}-{_spell(chr(last))}" for first, last in ranges
    )
    return f"[{''.join(parts)}]"


def character_ways(characters: Ranges) -> list[str] | None:
    """Alternatives that together are a set of characters; None if they are too many.

    The characters past ASCII are all of them, or each by itself.
    """
    ascii_only, past = intersect(characters, ASCII), subtract(characters, ASCII)
    parts = [char_class(ascii_only)] if ascii_only else []
    if not past:
        return parts
    if past == PAST_ASCII:
        return [*parts, "[^\\U00000000-\\U0000007f]"]
    if sum(last - first + 1 for first, last in past) > _MOST_SINGLE:
        return None
    return parts + [literal(chr(code)) for first, last in past for code in range(first, last + 1)]


def alternatives(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def repeat(expression: str, least: int, most: int | None) -> str:
    """``expression`` from ``least`` to ``most`` times, None for any number."""
    if most == 0:
        return '""'
    if (least, most) == (1, 1):
        return expression
    if most is None:
        return f"({expression})*" if least == 0 else f"({expression}){{{least},}}"
    return f"({expression})?" if (least, most) == (0, 1) else f"({expression}){{{least},{most}}}"


def _spell(character: str) -> str:
    return character if re.fullmatch(r"[A-Za-z0-9_ ]", character) else f"\\U{ord(character):08x}"
