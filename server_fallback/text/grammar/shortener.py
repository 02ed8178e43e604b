"""Finds the fewest tokens that write a text: their number, and the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .completion import Ending

# Longer tokens rarely shorten a text.
_LONGEST_TOKEN = 24
_MOST_CACHED = 1000
# More tokens than any text has bytes.
_UNREACHABLE = 1 << 60


@dataclass(frozen=True, slots=True)
class Fewest:
    """``first`` is None if no token is needed."""

    count: int
    first: int | None


@dataclass(frozen=True, slots=True)
class _Counted:
    """For each offset in a text: the number of tokens that write the rest, and the offset where the first one ends."""

    data: bytes
    counts: list[int]
    ends: list[int]


class Shortener:
    """``tokens`` are the bytes that each id writes, empty for special tokens.

    All answers of a model share it, on any thread.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._ids = {token: token_id for token_id, token in enumerate(tokens) if 0 < len(token) <= _LONGEST_TOKEN}
        self._longest = max(map(len, self._ids), default=1)
        self._cache: dict[str, Fewest | None] = {}
        self._last = _Counted(b"", [0], [0])

    def needed(self, completion: Ending) -> Fewest | None:
        """None if the vocabulary lacks a byte of the completion."""
        tail = self.fewest(completion.text)
        if tail is None or not completion.head:
            return tail
        return Fewest(len(completion.head) + tail.count, completion.head[0])

    def fewest(self, text: str) -> Fewest | None:
        """None if the vocabulary lacks a byte of the text."""
        if text in self._cache:
            return self._cache[text]
        counted = self._last = self._counted(text.encode(), self._last)
        first = self._ids[counted.data[: counted.ends[0]]] if text and counted.counts[0] < _UNREACHABLE else None
        found = None if counted.counts[0] >= _UNREACHABLE else Fewest(counted.counts[0], first)
        if len(self._cache) >= _MOST_CACHED:
            self._cache = {}
        self._cache[text] = found
        return found

    def _counted(self, data: bytes, last: _Counted) -> _Counted:
        """Reuse the counts of ``last`` for the end that both texts share, because most completions end alike."""
        ids, longest = self._ids, self._longest
        new = len(data) - _common_end(data, last.data)
        same = len(last.data) - (len(data) - new)
        counts = [_UNREACHABLE] * new + last.counts[same:]
        ends = [0] * new + [end + new - same for end in last.ends[same:]]
        for start in range(new - 1, -1, -1):
            for end in range(start + 1, min(start + longest, len(data)) + 1):
                if counts[end] + 1 < counts[start] and data[start:end] in ids:
                    counts[start], ends[start] = counts[end] + 1, end
        return _Counted(data, counts, ends)


def _common_end(left: bytes, right: bytes) -> int:
    """The length of the longest common end."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[len(left) - middle :] == right[len(right) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low
