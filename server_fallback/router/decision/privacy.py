"""Privacy: whether a request may leave the device. In doubt it is private.

Patterns are those that `web/src/shared/decision/pattern.ts` defines and reads. They are compiled for the library regex,
which searches without the interpreter's lock and within a time limit.

A pattern is searched in every reading of every text (see `readings`). The parts of a message are searched joined by
nothing, by a space and by a line feed, because servers join them differently. They are also searched with a boundary
between them: each part may begin or end a word there, and a match may continue from one part to the next. So are the
texts of all messages, which meet in the prompt: joined by a space, by a line feed, and with boundaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from time import thread_time
from typing import Self

import regex

from nearfar.compiler.shared.script import SharedScript

from .readings import BOUNDARY, readings
from .situation import Situation

# If the searches of a request need more processor time, they end, and the request is private. Time in which the machine
# is busy with something else does not count. A pattern without backtracking searches 4 MB in 0.1 s. The browser's
# router does not need this limit for patterns that backtrack, because its engine takes linear time.
SEARCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PrivateCheck:
    """The compiled private rules of a policy. ``across`` are the patterns for texts with boundaries."""

    labels: frozenset[str]
    patterns: tuple[regex.Pattern[str], ...]
    across: tuple[regex.Pattern[str], ...]
    ignore_case: bool

    @classmethod
    def of(cls, labels: tuple[str, ...], patterns: tuple[str, ...], *, ignore_case: bool) -> Self:
        """``patterns`` are those of a policy that was read."""
        plain, across = (
            tuple(compile_pattern(pattern, ignore_case=ignore_case, boundaries=boundaries) for pattern in patterns)
            for boundaries in (False, True)
        )
        return cls(frozenset(labels), plain, across, ignore_case)

    def is_private(self, situation: Situation) -> bool:
        """Whether the request or one of its messages has a private label, or one of its texts matches a pattern.

        It takes at most `SEARCH_SECONDS` of the thread's time, so call it in a thread if the situation comes from a
        client; the interpreter stays free meanwhile.
        """
        labels = [*situation.labels, *(label for message in situation.messages for label in message.labels)]
        if not self.labels.isdisjoint(labels):
            return True
        messages = situation.messages
        texts = dict.fromkeys((*(message.content for message in messages), *situation.texts))
        groups = [*((text,) if isinstance(text, str) else text for text in texts), *(each.parts for each in messages)]
        met = [text for message in messages for text in message.parts or (message.content,) if text]
        return self._any_match(groups, met if len(messages) > 1 else ())

    def matches(self, *parts: str) -> bool:
        """Whether a text of these parts matches a pattern. Call it in a thread, as `is_private`."""
        return self._any_match([parts])

    def _any_match(self, groups: Iterable[Sequence[str]], met: Sequence[str] = ()) -> bool:
        """Each of ``groups`` are the parts of a text; ``met`` are the texts of several messages."""
        if not self.patterns:
            return False
        deadline = thread_time() + SEARCH_SECONDS
        try:
            return any(
                self._matches_reading(text, patterns, deadline)
                for text, patterns in chain(*map(self._joined, groups), self._met(met))
            )
        except TimeoutError:
            return True

    def _joined(self, parts: Sequence[str]) -> Iterator[tuple[str, tuple[regex.Pattern[str], ...]]]:
        yield "".join(parts), self.patterns
        if len(parts) > 1:
            yield from ((separator.join(parts), self.patterns) for separator in (" ", "\n"))
            yield BOUNDARY.join(parts), self.across

    def _met(self, texts: Sequence[str]) -> Iterator[tuple[str, tuple[regex.Pattern[str], ...]]]:
        if len(texts) > 1:
            yield from ((separator.join(texts), self.patterns) for separator in (" ", "\n"))
            yield BOUNDARY.join(texts), self.across

    def _matches_reading(self, text: str, patterns: tuple[regex.Pattern[str], ...], deadline: float) -> bool:
        for reading in readings(text, ignore_case=self.ignore_case):
            for pattern in patterns:
                remaining = deadline - thread_time()
                if remaining <= 0:
                    raise TimeoutError
                if pattern.search(reading, concurrent=True, timeout=remaining):
                    return True
        return False


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, *, ignore_case: bool, boundaries: bool = False) -> regex.Pattern[str]:
    """With ``boundaries``, a match may continue over a `readings.BOUNDARY`, and every assertion (^, $, \\b and \\B)
    holds there. ``pattern`` is one of a policy that was read.
    """
    source = SharedScript.of_thread().ask("patternSource", pattern, ignore_case, boundaries)
    return regex.compile(source, regex.ASCII)
