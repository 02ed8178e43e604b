"""One answer's constraint, with the processor time that it has used."""

from __future__ import annotations

from typing import Generic, TypeVar

from nearfar.compiler.runtime.batch import IntArray
from nearfar.compiler.runtime.errors import RequestError

from .request import Constraint

Owner = TypeVar("Owner")
# An answer may use this much processor time for its constraint, and this much more for each token.
BUDGET_SECONDS = 3.0
BUDGET_SECONDS_PER_TOKEN = 0.004


class MaskTask(Generic[Owner]):
    """Work that is posted to `Masks` once for each token. Until they return the task, only they use it. ``owner`` is
    the answer.

    ``mask`` allows the next token, None allows all; ``finished``: only the end is allowed; ``is_complete``: the answer
    was complete after its last token; ``error`` is the constraint's error. ``seconds`` is the processor time of all
    runs, ``last_seconds`` that of the last one; the pool measures them.
    """

    def __init__(self, owner: Owner, constraint: Constraint) -> None:
        self.owner, self.constraint = owner, constraint
        self.mask: IntArray | None = None
        self.finished = self.is_complete = False
        self.error: Exception | None = None
        self.seconds = self.last_seconds = 0.0
        self.is_cancelled = False
        # The token that the next run accepts.
        self.token_id: int | None = None
        self.is_last = False
        self._tokens = 0

    @property
    def is_first(self) -> bool:
        """Whether it computes the answer's first mask."""
        return self._tokens == 0

    def advance(self, token_id: int, *, is_last: bool) -> None:
        """Let the next run accept a sampled token. After the last one, no mask is needed."""
        self.token_id, self.is_last = token_id, is_last
        self._tokens += 1

    def run(self) -> None:
        """Accept the token, if there is one, and compute the next mask."""
        try:
            if self.token_id is not None:
                self.constraint.accept(self.token_id)
                self.finished = not self.is_last and self.constraint.finished
                self.is_complete = self.is_last and self.constraint.complete
            if not self.finished and not self.is_last:
                self.mask = self.constraint.mask()
        except Exception as error:
            self.error = error

    def is_over_budget(self, running_seconds: float = 0.0) -> bool:
        """``running_seconds`` is the processor time of a run that has not ended."""
        return self.seconds + running_seconds > BUDGET_SECONDS + BUDGET_SECONDS_PER_TOKEN * self._tokens

    def over_budget(self) -> RequestError:
        """The error of an answer that is over its budget."""
        return RequestError(
            f"the grammar is too slow: after {self._tokens} tokens it has used all of its processor time "
            f"({BUDGET_SECONDS:g} seconds and {1000 * BUDGET_SECONDS_PER_TOKEN:g} ms for each token); write it "
            "with less ambiguity",
            param="response_format",
            code="grammar_too_slow",
            tokens=self._tokens,
        )
