"""Drafts from the text itself: the tokens that followed an earlier occurrence of a sequence's last tokens.

Saxena 2023 (prompt lookup decoding).
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from .sequence import Sequence
from .speculation import Guess

# The longest and the shortest run of last tokens that is looked up; long ones first, because their guesses are better.
LONGEST, SHORTEST = 4, 2


class Index:
    """The last end of each run of tokens among the first ``length`` tokens of one sequence."""

    __slots__ = ("ends", "length")

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self.length = 0

    def extend(self, tokens: Items[int], length: int) -> None:
        for end in range(self.length + 1, length + 1):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                self.ends[tuple(tokens[end - size : end])] = end
        self.length = max(self.length, length)

    def follow(self, tokens: Items[int]) -> int | None:
        """The earlier end of the longest run at the end of the tokens; None if no run occurred before."""
        for size in range(LONGEST, SHORTEST - 1, -1):
            end = self.ends.get(tuple(tokens[-size:])) if len(tokens) >= size else None
            if end is not None:
                return end
        return None


class NgramDrafter:
    # The text is what it guesses from.
    reads_images = True

    def __init__(self) -> None:
        self._indexes: dict[Sequence, Index] = {}

    def draft(self, guesses: Items[Guess]) -> None:
        for guess in guesses:
            tokens = guess.sequence.tokens
            index = self._indexes.setdefault(guess.sequence, Index())
            # Without the last token; otherwise the end of the sequence would match itself.
            index.extend(tokens, len(tokens) - 1)
            end = index.follow(tokens)
            guess.sequence.drafts = [] if end is None else tokens[end : end + guess.most]

    def forget(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence, None)

    def reset(self) -> None:
        """It has no state on a device."""

    def close(self) -> None:
        self._indexes.clear()
