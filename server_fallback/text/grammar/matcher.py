"""A grammar's state after some text. Each accepted token or text is one step, which can be rolled back."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .token_shapes import TokenShapes

if TYPE_CHECKING:
    from .xgrammar_binding import GrammarMatcher

Mask = npt.NDArray[np.int32]


# Reading the processor's time costs as much as accepting a text, so a search does it only after this much wall time.
_UNTIMED_SECONDS = 0.01


class SearchTooLong(Exception):
    """A search among texts used up its time; the matcher is as it was before the search."""


class Matcher:
    """Used by one answer only."""

    def __init__(self, matcher: GrammarMatcher, shapes: TokenShapes) -> None:
        self.shapes = shapes
        self._matcher = matcher
        self._steps = 0
        # When a search starts to be timed, in wall time, and when it ends, in processor time of its thread.
        self._timed_from = math.inf
        self._search_ends: float | None = None
        self._search_seconds = 0.0

    def accept_token(self, token_id: int) -> bool:
        accepted = bool(self._matcher.accept_token(token_id))
        self._steps += accepted
        return accepted

    def accept_text(self, text: str) -> bool:
        """Raises SearchTooLong if the search has used up its time."""
        if time.perf_counter() > self._timed_from:
            self._check_time()
        accepted = bool(self._matcher.accept_string(text))
        self._steps += accepted
        return accepted

    def rollback(self, steps: int) -> None:
        self._matcher.rollback(steps)
        self._steps -= steps

    def search(self, seconds: float) -> AbstractContextManager[None]:
        """Raises SearchTooLong if what is inside takes longer, in processor time of its thread."""
        self._timed_from, self._search_ends = time.perf_counter() + min(seconds, _UNTIMED_SECONDS), None
        self._search_seconds = seconds
        return _Search(self, self._steps)

    def end_search(self, steps: int | None) -> None:
        """Stop timing. Roll back to ``steps``, unless None."""
        self._timed_from = math.inf
        if steps is not None:
            self.rollback(self._steps - steps)

    def _check_time(self) -> None:
        now = time.thread_time()
        if self._search_ends is None:
            self._search_ends = now + self._search_seconds
        if now >= self._search_ends:
            raise SearchTooLong

    @property
    def num_states(self) -> int:
        """The number of parser states after the text so far. A matcher keeps the states of all its steps."""
        return self._matcher.num_states

    @property
    def complete(self) -> bool:
        """Whether the text is complete."""
        return bool(self._matcher.is_completed())

    @property
    def forced(self) -> str | None:
        """The only text that can come next, "" if there is a choice; None if it ends within a character."""
        try:
            return str(self._matcher.find_jump_forward_string())
        except UnicodeDecodeError:
            return None

    def mask(self) -> Mask:
        """A new array (ceil(V / 32),), least significant bit first, with a bit for each token that is allowed next.

        Stop tokens are allowed if the text is complete.
        """
        # xgrammar writes into any array of the DLPack protocol. If all tokens are allowed, it writes ones.
        mask = np.empty(len(self.shapes.plain), np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        return mask


class _Search:
    """Like `contextlib.contextmanager`, at a third of the cost, because each token needs two searches."""

    def __init__(self, matcher: Matcher, steps: int) -> None:
        self._matcher, self._steps = matcher, steps

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._matcher.end_search(self._steps if isinstance(error, SearchTooLong) else None)


def allowed_ids(mask: Mask, count: int) -> npt.NDArray[np.intp]:
    """The ids below ``count`` whose bits are set, ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=count, bitorder="little"))


def has_bit(mask: Mask, token_id: int) -> bool:
    return bool(int(mask[token_id >> 5]) >> (token_id & 31) & 1)


def set_bit(mask: Mask, token_id: int) -> None:
    mask.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))
