"""A grammar over one answer, as the engine's Constraint. Token ids flow in, masks of what may come next flow out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearfar.compiler.errors import RequestError

from .matcher import Mask, Matcher
from .token_shapes import TokenShapes

if TYPE_CHECKING:
    from .xgrammar_binding import CompiledGrammar


class GrammarConstraint:
    """A matcher's state after the tokens so far; it is used by nothing else.

    ``open_ended``: any text may come, so no answer is whole before the model ends it.
    """

    def __init__(self, matcher: Matcher, open_ended: bool = False) -> None:
        self.matcher = matcher
        self._open_ended = open_ended
        self._ends = np.full(len(matcher.shapes.plain), -1, np.int32)
        for token_id in matcher.shapes.eos_token_ids:
            self._ends[token_id >> 5] &= ~np.int32(np.uint32(1 << (token_id & 31)).view(np.int32))
        self._mask: Mask | None = None

    @classmethod
    def of(cls, compiled: CompiledGrammar, shapes: TokenShapes, open_ended: bool = False) -> GrammarConstraint:
        """Over an answer that has not begun."""
        from .xgrammar_binding import GrammarMatcher

        return cls(Matcher(GrammarMatcher(compiled), shapes), open_ended)

    def mask(self) -> Mask:
        """A new array each time the state changes. Raises RequestError where no token of the vocabulary continues the text."""
        if self._mask is None:
            mask = self.matcher.mask()
            if not mask.any():
                raise RequestError(
                    "no token of this model's vocabulary continues the answer; give another grammar",
                    param="response_format",
                    code="grammar_dead_end",
                )
            self._mask = mask
        return self._mask

    def accept(self, token_id: int) -> None:
        """Raises RequestError for a token that the mask does not hold."""
        if not self.matcher.accept_token(token_id):
            raise RequestError(f"token {token_id} does not continue the grammar; choose one that mask() allows", token_id=token_id)
        self._mask = None

    @property
    def needed(self) -> int | None:
        """Not known here; see `BoundedConstraint.needed`."""
        return None

    def spend(self, tokens: int) -> None:
        """There is no limit on tokens here."""

    @property
    def finished(self) -> bool:
        return self.complete and not (self.mask() & self._ends).any()

    @property
    def complete(self) -> bool:
        """Whether the answer so far is a whole text of the grammar."""
        return not self._open_ended and self.matcher.complete
