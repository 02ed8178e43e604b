"""Drafting: which answers speculate, and what happens if the drafter fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

from nearfar.compiler.ir.sampling import MARK
from nearfar.compiler.runtime.errors import NearfarError

from .answer import Answer
from .sequence import Sequence
from .speculation import Drafter, Guess, Speculation

# A drafter that fails more often than this in a row is left out.
MAX_FAILURES = 3


class Drafting:
    """``drafter`` is None without speculation. ``context`` is that of the model."""

    def __init__(self, drafter: Drafter | None, speculation: Speculation | None, context: int) -> None:
        assert drafter is None or speculation is not None
        self._drafter, self._context = drafter, context
        self._tokens = 0 if speculation is None else speculation.tokens
        # In a row.
        self._failures = 0

    def speculates(self, answer: Answer) -> bool:
        """Whether an answer speculates; `speculation.py` explains why not all do."""
        request, drafter = answer.request, self._drafter
        if drafter is None:
            return False
        return (
            request.constraint is None
            and request.drafts is None
            and request.when_full == "stop"
            and (drafter.reads_images or not request.images)
            and answer.sampling.flags & ~MARK == 0
        )

    def guesses(self, running: Iterable[Sequence], answers: Mapping[Sequence, Answer]) -> list[Guess]:
        """What to draft for the next step."""
        if self._drafter is None or self._failures > MAX_FAILURES:
            return []
        guesses = [
            Guess.of(sequence, answer.sampling, self._tokens, self._context)
            for sequence, answer in ((sequence, answers[sequence]) for sequence in running)
            # The first tokens have a mask, which all rows of a step would share.
            if self.speculates(answer) and sequence.generated >= answer.request.min_tokens
        ]
        return [guess for guess in guesses if guess is not None]

    def draft(self, guesses: Items[Guess]) -> bool:
        """False if the drafter fails; it starts anew then. After failures in a row, answers continue without drafts
        until the model is loaded again.
        """
        assert self._drafter is not None
        try:
            self._drafter.draft(guesses)
        except NearfarError:
            self._drafter.reset()
            self._failures += 1
            return False
        self._failures = 0
        return True

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if self._drafter is not None:
            self._drafter.forget(sequence)

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()
