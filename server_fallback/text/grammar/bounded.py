"""A grammar's answer that is whole within a number of tokens, as the engine's Constraint.

While many tokens are left, the grammar alone decides what may come next. When few are, only those tokens may that leave enough for a
completion, down to the completion itself. How few: ``reserve`` is at least how many tokens one token can add to the shortest completion.

The browser does the same (web/src/grammar/bounded.ts), with the same masks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .completion import Completion, completes, find_completion, pending_bytes
from .constraint import GrammarConstraint
from .matcher import Mask, SearchTooLong, has_bit, set_bit
from .shortener import Shortener
from .token_shapes import FreeText

# At most this many tokens are tried one by one each time, the shortest ones first; each costs up to TRIALS characters.
_MOST_TRIED = 24
_TRIALS = 600
# Where a completion has to be found anew, which is rare.
_TRIALS_AGAIN = 4000
# Characters of many kinds: where a matcher takes them all and is as before, any text without escapes leaves it so.
_PROBE = (
    2 * "az AZ 09 ,;.:-_+*/=<>(){}[]#%&!?'~^`|@$ \u00e9\u00df\u03a9\u0416\u05d0\u0905\u4e2d\u3042\uac00\u20ac\U0001f600"
)
# After a quote, JSON has no backslash.
_FREE_PROBE = _PROBE + '"\\\n'
# Other answers wait meanwhile. What takes longer is a grammar that is ambiguous without end.
_MOST_SECONDS = 1.0
# Of one character.
_MOST_BYTES = 4
# So many tokens are looked at together for those that a mask holds.
_CHUNK = 4096
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Bound:
    """``first`` completes an answer that has not begun, None where none was found; ``endings`` are texts that may complete one. ``text`` is
    for grammars with a trigger.
    """

    max_tokens: int
    reserve: int
    endings: tuple[str, ...]
    first: Completion | None
    text: FreeText | None = None


class BoundedConstraint:
    """``inner`` before its first token; it is used by nothing else. Where completions take too long to find, the answer may be cut:
    ``gave_up`` says so.
    """

    def __init__(self, inner: GrammarConstraint, bound: Bound, shortener: Shortener) -> None:
        self._inner = inner
        self.matcher = inner.matcher
        self._bound = bound
        self._shapes = inner.matcher.shapes
        self._shortener = shortener
        self._left = bound.max_tokens
        self._completion = bound.first
        # How many bytes the last character lacks.
        self._pending = 0
        self._mask: Mask | None = None
        self.gave_up = False

    def mask(self) -> Mask:
        """A new array each time the state changes. Raises RequestError where no token of the vocabulary continues the text."""
        if self._mask is None:
            every = self._inner.mask()
            self._mask = every if self._has_room else self._in_time(lambda: self._allowed(every), every)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Raises RequestError for a token that the grammar does not allow."""
        self._inner.accept(token_id)
        self._left -= 1
        self._mask = None
        self._pending = pending_bytes(self._pending, self._shapes.tokens[token_id])
        self._completion = self._in_time(lambda: self._completion_after(token_id, self._pending, _TRIALS_AGAIN), None)

    @property
    def needed(self) -> int | None:
        """How many tokens the shortest completion found has; None if none was found."""
        needed = None if self._completion is None else self._shortener.needed(self._completion)
        return None if needed is None else needed.count

    def spend(self, tokens: int) -> None:
        """So many of ``max_tokens`` have come before the grammar's text begins."""
        self._left -= tokens
        self._mask = None

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def complete(self) -> bool:
        """Whether the answer so far is a whole text of the grammar."""
        return self._inner.complete

    @property
    def _has_room(self) -> bool:
        """Whether the completion surely fits after any next token: no text has more tokens than it has bytes."""
        completion = self._completion
        return (
            completion is None
            or self._left - 1 >= len(completion.head) + _MOST_BYTES * len(completion.text) + self._bound.reserve
        )

    def _in_time(self, find: Callable[[], Found], otherwise: Found) -> Found:
        if self.gave_up:
            return otherwise
        try:
            with self.matcher.search(_MOST_SECONDS):
                return find()
        except SearchTooLong:
            self.gave_up = True
            return otherwise

    def _allowed(self, every: Mask) -> Mask:
        completion, matcher = self._completion, self.matcher
        assert completion is not None
        afterwards = self._left - 1
        needed = self._shortener.needed(completion)
        if needed is None or afterwards >= needed.count + self._bound.reserve:
            return every
        few = np.zeros_like(every)
        for token_id in self._shapes.eos_token_ids:
            if has_bit(every, token_id):
                set_bit(few, token_id)
        if needed.first is not None and afterwards >= 0:
            set_bit(few, needed.first)
        # A text that leaves the matcher as it is leaves the completion as it is.
        if afterwards >= needed.count:
            if self._bound.text is not None and self._is_as_before_after(_FREE_PROBE, every):
                few |= every & self._bound.text.free
            elif self._is_as_before_after(_PROBE, every):
                few |= every & self._shapes.plain
        for token_id in self._to_try(every & ~few):
            if not matcher.accept_token(token_id):
                continue
            found = self._completion_after(
                token_id, pending_bytes(self._pending, self._shapes.tokens[token_id]), _TRIALS
            )
            matcher.rollback(1)
            rest = None if found is None else self._shortener.needed(found)
            if rest is not None and rest.count <= afterwards:
                set_bit(few, token_id)
        return few

    def _to_try(self, mask: Mask) -> Iterator[int]:
        count, text = 0, self._bound.text
        order = self._shapes.shortest_first if text is None else text.order
        for start in range(0, len(order), _CHUNK):
            chunk = order[start : start + _CHUNK]
            for token_id in chunk[(mask[chunk >> 5] >> (chunk & 31).astype(np.int32)) & 1 == 1].tolist():
                if count == _MOST_TRIED:
                    return
                count += 1
                yield token_id

    def _completion_after(self, token_id: int, pending: int, most_trials: float = math.inf) -> Completion | None:
        """A completion of the matcher's state, which the token led to from the one that the completion at hand is for."""
        known = ""
        if self._completion is not None:
            head, text = self._completion.head, self._completion.text
            if head[:1] == (token_id,):
                return Completion(head[1:], text)
            token = self._shapes.tokens[token_id]
            known = text if pending == 0 else _after_character(text, token, pending)
            written = token.decode(errors="replace")
            # What a completion leaves out between its parts is space.
            for part in (written, re.sub(r"[ \t\n]", "", written)) if pending == 0 else ():
                if text.startswith(part) and completes(self.matcher, text[len(part) :]):
                    return Completion((), text[len(part) :])
        return find_completion(self.matcher, pending, self._bound.endings, most_trials, known)

    def _is_as_before_after(self, text: str, mask: Mask) -> bool:
        matcher = self.matcher
        if not matcher.accept_text(text):
            return False
        after = matcher.mask()
        matcher.rollback(1)
        return bool((after == mask).all())


def _after_character(text: str, token: bytes, pending: int) -> str:
    """What of the text is left after the token and the bytes that end its last character, where it begins with these; else all of it."""
    data = text.encode()
    return data[len(token) + pending :].decode() if data.startswith(token) else text
