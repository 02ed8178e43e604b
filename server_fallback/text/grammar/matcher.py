"""A grammar's state after some text. Tokens and texts flow in, what may come next flows out.

Each token or text that is accepted is one step, which can be taken back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .token_shapes import TokenShapes

if TYPE_CHECKING:
    from .xgrammar_binding import GrammarMatcher

Mask = npt.NDArray[np.int32]


class SearchTooLong(Exception):
    """A search among texts took more than its time; the matcher is as it was before it."""


class Matcher:
    """Used by one answer only."""

    def __init__(self, matcher: GrammarMatcher, shapes: TokenShapes) -> None:
        self.shapes = shapes
        self._matcher = matcher
        self._steps = 0
        self._search_ends = math.inf

    def accept_token(self, token_id: int) -> bool:
        accepted = bool(self._matcher.accept_token(token_id))
        self._steps += accepted
        return accepted

    def accept_text(self, text: str) -> bool:
        """Raises SearchTooLong where a search goes on for too long."""
        if time.perf_counter() > self._search_ends:
            raise SearchTooLong
        accepted = bool(self._matcher.accept_string(text))
        self._steps += accepted
        return accepted

    def rollback(self, steps: int) -> None:
        self._matcher.rollback(steps)
        self._steps -= steps

    @contextmanager
    def search(self, seconds: float) -> Iterator[None]:
        """Raises SearchTooLong where what is inside takes longer."""
        self._search_ends = time.perf_counter() + seconds
        steps = self._steps
        try:
            yield
        except SearchTooLong:
            self.rollback(self._steps - steps)
            raise
        finally:
            self._search_ends = math.inf

    @property
    def complete(self) -> bool:
        """Whether the text is a whole one as it is."""
        return bool(self._matcher.is_completed())

    @property
    def forced(self) -> str | None:
        """The text that must come next, "" where there is a choice; None where it ends within a character."""
        try:
            return str(self._matcher.find_jump_forward_string())
        except UnicodeDecodeError:
            return None

    def mask(self) -> Mask:
        """A new array, (ceil(V / 32),), least significant bit first: whether a token may come next, stop tokens where the text is whole."""
        # xgrammar writes into any array of the DLPack protocol; where all tokens may come, it writes ones.
        mask = np.empty(len(self.shapes.plain), np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        return mask


def allowed_ids(mask: Mask, count: int) -> npt.NDArray[np.intp]:
    """The ids below ``count`` whose bits are set, ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=count, bitorder="little"))


def has_bit(mask: Mask, token_id: int) -> bool:
    return bool(int(mask[token_id >> 5]) >> (token_id & 31) & 1)


def set_bit(mask: Mask, token_id: int) -> None:
    mask.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))
