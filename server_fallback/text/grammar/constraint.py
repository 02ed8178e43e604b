"""The engine's constraint for a grammar: it accepts tokens and computes masks of the tokens that are allowed next.

A grammar that reads the same text in many ways (`[a-z]* [a-z]*`) gives the parser more states with each token. The
parser retains them all, 60 to 700 bytes each, and its time grows with them. The states of all tokens together therefore
have a budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from .matcher import Mask, Matcher
from .token_shapes import TokenShapes

if TYPE_CHECKING:
    from .xgrammar_binding import CompiledGrammar

# The maximum number of parser states, summed over the tokens of an answer, and its increase for each token. JSON has 1
# to
# 5 states a token, an object with 400 optional properties 70, a union of 300 objects 90.
BUDGET_STATES = 30_000
BUDGET_STATES_PER_TOKEN = 100


class GrammarConstraint:
    """Constrains one answer by a matcher, which nothing else may use.

    ``open_ended``: any text is allowed, so an answer is complete only when the model ends it.
    """

    def __init__(self, matcher: Matcher, open_ended: bool = False) -> None:
        self.matcher = matcher
        self._open_ended = open_ended
        self._ends = np.full(len(matcher.shapes.plain), -1, np.int32)
        for token_id in matcher.shapes.eos_token_ids:
            self._ends[token_id >> 5] &= ~np.int32(np.uint32(1 << (token_id & 31)).view(np.int32))
        self._mask: Mask | None = None
        self._tokens = self._states = 0

    @classmethod
    def of(cls, compiled: CompiledGrammar, shapes: TokenShapes, open_ended: bool = False) -> GrammarConstraint:
        """A constraint for an answer that has not begun."""
        from .xgrammar_binding import GrammarMatcher

        return cls(Matcher(GrammarMatcher(compiled), shapes), open_ended)

    def mask(self) -> Mask:
        """A new array each time the state changes. Raises RequestError if no token continues the text."""
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
        """Raises RequestError for a token that the mask does not allow, and if the parser exceeds its budget."""
        if not self.matcher.accept_token(token_id):
            raise RequestError(
                f"token {token_id} does not continue the grammar; choose one that mask() allows", token_id=token_id
            )
        self._mask = None
        self._tokens += 1
        self._states += self.matcher.num_states
        if self._states > BUDGET_STATES + BUDGET_STATES_PER_TOKEN * self._tokens:
            raise RequestError(
                f"the grammar is too ambiguous: after {self._tokens} tokens its parser has kept {self._states:,} "
                "states "
                f"(at most {BUDGET_STATES:,} and {BUDGET_STATES_PER_TOKEN} for each token); let each text be read in "
                "one "
                "way only",
                param="response_format",
                code="grammar_too_ambiguous",
                tokens=self._tokens,
            )

    @property
    def needed(self) -> int | None:
        """Not known here; see `BoundedConstraint.needed`."""
        return None

    def spend(self, tokens: int) -> None:
        """This constraint has no limit on tokens."""

    @property
    def finished(self) -> bool:
        return self.complete and not (self.mask() & self._ends).any()

    @property
    def complete(self) -> bool:
        """Whether the answer so far is a complete text of the grammar."""
        return not self._open_ended and self.matcher.complete
