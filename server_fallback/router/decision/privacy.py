"""Privacy: whether a request may leave the device. Its labels and all of its texts flow in, a yes or no flows out; in doubt it is private.

A text is searched as it stands and as it can be read: with the escapes of JSON undone, for arguments of tools are JSON in a text; with
Unicode's compatible forms made one (NFKC: digits of full width, ligatures); with every dash a hyphen; and without characters that nobody
sees.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Self

from .pattern import compile_pattern
from .situation import Situation

_JSON_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
_UNSEEN = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]")


@dataclass(frozen=True, slots=True)
class PrivateCheck:
    """The private rules of a policy, ready to search with."""

    labels: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    ignore_case: bool

    @classmethod
    def of(cls, labels: tuple[str, ...], patterns: tuple[str, ...], *, ignore_case: bool) -> Self:
        """Raises ValueError for a pattern that is none; see `pattern`."""
        return cls(frozenset(labels), tuple(compile_pattern(pattern, ignore_case=ignore_case) for pattern in patterns), ignore_case)

    def is_private(self, situation: Situation) -> bool:
        """By a label of the request or of any of its messages, or by a pattern in any of its texts."""
        labels = [*situation.labels, *(label for message in situation.messages for label in message.labels)]
        if not self.labels.isdisjoint(labels):
            return True
        return any(self.matches(text) for text in (*(message.content for message in situation.messages), *situation.texts))

    def matches(self, text: str) -> bool:
        if not self.patterns:
            return False
        return any(pattern.search(reading) for reading in readings(text, self.ignore_case) for pattern in self.patterns)


def readings(text: str, ignore_case: bool) -> dict[str, None]:
    """The text, and what else it can be read as; each once, the text itself first."""
    ways = [text, json_unescaped(text)]
    ways += [_UNSEEN.sub("", unicodedata.normalize("NFKC", _DASHES.sub("-", way))) for way in ways]
    # Patterns have both cases of their own letters; this finds those that become others (final sigma) or two (sharp s).
    return dict.fromkeys([*ways, *(way.upper() for way in ways)] if ignore_case else ways)


def json_unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _JSON_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else _ESCAPED[escape[2]], text)
    # JSON writes a character past U+FFFF as two halves.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
