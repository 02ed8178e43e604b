"""A constraint whose answer is complete within a number of tokens.

While many tokens remain, the grammar alone decides which tokens are allowed. When few remain, a token is allowed only
if it leaves enough tokens for a completion. ``reserve`` sets this limit: it is an upper bound of the tokens that one
token can add to the shortest completion.

The browser does the same (web/src/grammar/bounded.ts), with the same masks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .completion import Ending, completes, find_completion, pending_bytes
from .constraint import GrammarConstraint
from .matcher import Mask, SearchTooLong, has_bit, set_bit
from .shortener import Shortener
from .token_shapes import FreeText

# At most this number of tokens is tried one by one for a mask, the shortest first; each costs up to _TRIALS characters.
_MOST_TRIED = 24
_TRIALS = 600
# For a completion that has to be searched again, which is rare.
_TRIALS_AGAIN = 4000
# Characters of many kinds. If a matcher accepts them all without a change of state, it does so for any text without
# escapes.
_PROBE = (
    2 * "az AZ 09 ,;.:-_+*/=<>(){}[]#%&!?'~^`|@$ \u00e9\u00df\u03a9\u0416\u05d0\u0905\u4e2d\u3042\uac00\u20ac\U0001f600"
)
# After a quote, JSON has no backslash.
_FREE_PROBE = _PROBE + '"\\\n'
# Other answers wait during a search. Only very ambiguous grammars take longer.
_MOST_SECONDS = 1.0
# The most bytes of one character.
_MOST_BYTES = 4
# The number of tokens that are compared with a mask at once.
_CHUNK = 4096
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Bound:
    """``first`` completes an answer that has not begun; it is None if no completion was found.

    ``endings`` are texts that may complete an answer. ``text`` is for grammars with a trigger.
    """

    max_tokens: int
    reserve: int
    endings: tuple[str, ...]
    first: Ending | None
    text: FreeText | None = None


class BoundedConstraint:
    """``inner`` must not have accepted a token, and nothing else may use it.

    If completions take too long to find, the answer may be cut off, and ``gave_up`` is true.
    """

    def __init__(self, inner: GrammarConstraint, bound: Bound, shortener: Shortener) -> None:
        self._inner = inner
        self.matcher = inner.matcher
        self._bound = bound
        self._shapes = inner.matcher.shapes
        self._shortener = shortener
        self._remaining = bound.max_tokens
        self._completion = bound.first
        # The number of bytes that the last character lacks.
        self._pending = 0
        self._mask: Mask | None = None
        self.gave_up = False

    def mask(self) -> Mask:
        """A new array each time the state changes. Raises RequestError if no token continues the text."""
        if self._mask is None:
            every = self._inner.mask()
            self._mask = every if self._has_room else self._in_time(lambda: self._allowed(every), every)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Raises RequestError for a token that the grammar does not allow."""
        self._inner.accept(token_id)
        self._remaining -= 1
        self._mask = None
        self._pending = pending_bytes(self._pending, self._shapes.tokens[token_id])
        self._completion = self._in_time(lambda: self._completion_after(token_id, self._pending, _TRIALS_AGAIN), None)

    @property
    def needed(self) -> int | None:
        """The number of tokens of the shortest known completion; None if none was found."""
        needed = None if self._completion is None else self._shortener.needed(self._completion)
        return None if needed is None else needed.count

    def spend(self, tokens: int) -> None:
        """Count ``tokens`` of ``max_tokens`` that precede the grammar's text."""
        self._remaining -= tokens
        self._mask = None

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def complete(self) -> bool:
        """Whether the answer so far is a complete text of the grammar."""
        return self._inner.complete

    @property
    def _has_room(self) -> bool:
        """Whether the completion surely fits after any next token: no text has more tokens than it has bytes."""
        completion = self._completion
        return (
            completion is None
            or self._remaining - 1 >= len(completion.head) + _MOST_BYTES * len(completion.text) + self._bound.reserve
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
        afterwards = self._remaining - 1
        needed = self._shortener.needed(completion)
        if needed is None or afterwards >= needed.count + self._bound.reserve:
            return every
        few = np.zeros_like(every)
        for token_id in self._shapes.eos_token_ids:
            if has_bit(every, token_id):
                set_bit(few, token_id)
        if needed.first is not None and afterwards >= 0:
            set_bit(few, needed.first)
        # A text that does not change the matcher does not change the completion.
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

    def _completion_after(self, token_id: int, pending: int, most_trials: float = math.inf) -> Ending | None:
        """A completion after ``token_id``, which the matcher has accepted.

        It may reuse the completion before the token.
        """
        known = ""
        if self._completion is not None:
            head, text = self._completion.head, self._completion.text
            if head[:1] == (token_id,):
                return Ending(head[1:], text)
            token = self._shapes.tokens[token_id]
            known = text if pending == 0 else _after_character(text, token, pending)
            token_text = token.decode(errors="replace")
            # A completion has no white space between its parts.
            for part in (token_text, re.sub(r"[ \t\n]", "", token_text)) if pending == 0 else ():
                if text.startswith(part) and completes(self.matcher, text[len(part) :]):
                    return Ending((), text[len(part) :])
        return find_completion(self.matcher, pending, self._bound.endings, most_trials, known)

    def _is_as_before_after(self, text: str, mask: Mask) -> bool:
        matcher = self.matcher
        if not matcher.accept_text(text):
            return False
        after = matcher.mask()
        matcher.rollback(1)
        return bool((after == mask).all())


def _after_character(text: str, token: bytes, pending: int) -> str:
    """The rest of ``text`` after the token and the end of its last character; all of it if it begins otherwise."""
    data = text.encode()
    return data[len(token) + pending :].decode() if data.startswith(token) else text
