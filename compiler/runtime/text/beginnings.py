"""Beginnings finds a beginning of a long text whose first tokens are those of the whole text, so that a text that is
much longer than a model's context is tokenized only as far as needed.

A text is cut at a border between words (word_borders.py), or anywhere if it is known how many of the tokens
no continuation changes (stable_tokens.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .stable_tokens import StableTokens
from .word_borders import border_before, border_pattern, is_plain, longest_piece

# More than most texts have.
_CHARACTERS_PER_TOKEN = 8


@dataclass(frozen=True, slots=True)
class Beginnings:
    """``longest`` is that of Unigram; see `longest_piece`."""

    backend: Any
    borders: re.Pattern[str] | None
    stable: StableTokens | None
    longest: int | None

    @staticmethod
    def of(backend: Any) -> Beginnings:
        return Beginnings(backend, border_pattern(backend), StableTokens.of(backend), longest_piece(backend))

    def encoding_beyond(self, text: str, count: int, encode: Callable[[str], Any]) -> Any | None:
        """The encoding of a beginning of ``text`` whose first ``count`` + 1 tokens are those of the text, if ``encode``
        makes encodings without special tokens. None for a short text, and for one that may have fewer.

        Each beginning that is tried is four times as long as the one before.
        """
        size = first = _CHARACTERS_PER_TOKEN * max(count, 1) + (self.stable.least_characters if self.stable else 0)
        while size < len(text):
            border = None if self.borders is None else border_before(self.borders, text, size)
            cut = border if border is not None or self.stable is None else self.stable.cut(text, size)
            if cut is not None:
                encoding = encode(text[:cut])
                num_stable = (
                    len(encoding.ids) if border is not None or self.stable is None else self.stable.count(encoding)
                )
                if num_stable > count:
                    return encoding
            # If the ends of a longer beginning do not agree either, they never do.
            elif self.longest is not None and size <= 4 * first and self._ends_agree(text, size, count, self.longest):
                return encode(text[:size])
            size *= 4
        return None

    def _ends_agree(self, text: str, size: int, count: int, longest: int) -> bool:
        """Whether no end of the text's beginning changes its first ``count`` + 1 tokens; see `longest_piece`."""
        if not is_plain(self.backend, text[size - longest : size + 1]):
            return False
        ends = [text[:end] for end in range(size - longest + 1, size + 1)]
        found = self.backend.encode_batch_fast(ends, add_special_tokens=False)
        beginning = found[0].ids[: count + 1]
        return len(beginning) > count and all(each.ids[: count + 1] == beginning for each in found)
