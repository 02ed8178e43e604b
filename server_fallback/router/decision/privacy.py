"""Privacy: whether a request may leave the device. In doubt it is private.

A pattern is searched in every reading of every text (see `readings`). The parts of a message are searched joined by nothing, by a space
and by a line feed, for servers differ in how they join them; and with a boundary between them, where each part may begin or end a word
and a match may go on from one part to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Self

import regex

from .pattern import compile_pattern
from .readings import BOUNDARY, readings
from .situation import Situation

# If the searches of a request take longer, they end, and the request is private. A pattern without backtracking searches 4 MB in 0.1 s.
# The browser's router needs no such limit for patterns that backtrack: its engine takes linear time.
SEARCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PrivateCheck:
    """The private rules of a policy, ready to search with. ``across`` are the patterns for texts with boundaries."""

    labels: frozenset[str]
    patterns: tuple[regex.Pattern[str], ...]
    across: tuple[regex.Pattern[str], ...]
    ignore_case: bool

    @classmethod
    def of(cls, labels: tuple[str, ...], patterns: tuple[str, ...], *, ignore_case: bool) -> Self:
        """Raises ValueError for an invalid pattern; see `pattern`."""
        whole, across = (
            tuple(compile_pattern(pattern, ignore_case=ignore_case, boundaries=boundaries) for pattern in patterns)
            for boundaries in (False, True)
        )
        return cls(frozenset(labels), whole, across, ignore_case)

    def is_private(self, situation: Situation) -> bool:
        """By a label of the request or of any of its messages, or by a pattern in any of its texts.

        It takes `SEARCH_SECONDS` at most, so call it in a thread if the situation is a client's; the interpreter stays free meanwhile.
        """
        labels = [*situation.labels, *(label for message in situation.messages for label in message.labels)]
        if not self.labels.isdisjoint(labels):
            return True
        texts = dict.fromkeys((*(message.content for message in situation.messages), *situation.texts))
        return self._finds([*((text,) for text in texts), *(message.parts for message in situation.messages)])

    def matches(self, *parts: str) -> bool:
        """Whether a pattern is found in a text of these parts. Call it in a thread, as `is_private`."""
        return self._finds([parts])

    def _finds(self, texts: Iterable[Sequence[str]]) -> bool:
        if not self.patterns:
            return False
        deadline = monotonic() + SEARCH_SECONDS
        try:
            return any(
                self._found_in(text, patterns, deadline) for parts in texts for text, patterns in self._joined(parts)
            )
        except TimeoutError:
            return True

    def _joined(self, parts: Sequence[str]) -> Iterator[tuple[str, tuple[regex.Pattern[str], ...]]]:
        yield "".join(parts), self.patterns
        if len(parts) > 1:
            yield from ((separator.join(parts), self.patterns) for separator in (" ", "\n"))
            yield BOUNDARY.join(parts), self.across

    def _found_in(self, text: str, patterns: tuple[regex.Pattern[str], ...], deadline: float) -> bool:
        for reading in readings(text, ignore_case=self.ignore_case):
            for pattern in patterns:
                left = deadline - monotonic()
                if left <= 0:
                    raise TimeoutError
                if pattern.search(reading, concurrent=True, timeout=left):
                    return True
        return False
