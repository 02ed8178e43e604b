"""Texts as the fewest tokens. A text flows in, token ids of the vocabulary flow out."""

from __future__ import annotations

from collections.abc import Sequence

# Longer tokens are rarely what shortens a text.
_LONGEST_TOKEN = 24
_MOST_KEPT = 1000


class Shortener:
    """``tokens``: what each id writes, nothing for special ones. Used by all answers of a model, from any thread."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._ids = {token: token_id for token_id, token in enumerate(tokens) if 0 < len(token) <= _LONGEST_TOKEN}
        self._longest = max(map(len, self._ids), default=1)
        self._kept: dict[str, tuple[int, ...] | None] = {}

    def tokens(self, text: str) -> tuple[int, ...] | None:
        """The fewest tokens that write ``text``, None where the vocabulary lacks a byte of it."""
        if text in self._kept:
            return self._kept[text]
        found = self._fewest(text.encode())
        if len(self._kept) >= _MOST_KEPT:
            self._kept = {}
        self._kept[text] = found
        return found

    def _fewest(self, data: bytes) -> tuple[int, ...] | None:
        ids, unreachable = self._ids, len(data) + 1
        counts = [unreachable] * len(data) + [0]
        ends = [0] * len(data)
        for start in range(len(data) - 1, -1, -1):
            for end in range(start + 1, min(start + self._longest, len(data)) + 1):
                if counts[end] + 1 < counts[start] and data[start:end] in ids:
                    counts[start], ends[start] = counts[end] + 1, end
        if counts[0] > len(data):
            return None
        found, at = [], 0
        while at < len(data):
            found.append(ids[data[at : ends[at]]])
            at = ends[at]
        return tuple(found)
