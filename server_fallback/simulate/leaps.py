"""Leaps: many turns of the scheduler at once, while nothing happens but that every running sequence decodes.

The engine's scheduler decides everything else. A leap leaves it in the state in which its own `next` and `commit` would
have left it after as many turns; a test compares both, event by event.
"""

from __future__ import annotations

from ..engine.scheduler import Scheduler
from ..engine.sequence import Sequence


class LeapingScheduler(Scheduler):
    """A Scheduler of a model with one page group and without windows, states, drafts or images."""

    def turns_to_leap(self, limit: int, *, is_steady: bool) -> int:
        """How many turns, up to ``limit``, would only decode: a row for each running sequence, and no answer begins.
        Answers end in the last of them at most, and only if no step is open.

        ``is_steady``: the last step was such a step, and no sequence has arrived or ended since. So those that wait
        wait on.
        """
        running = self.running
        if not running or self._draining or len(running) >= self.config.max_tokens:
            return 0
        if len(self.waiting) > 0:
            if not is_steady:
                return 0
            limit = min(limit, self._turns_to_promotion())
        for sequence in running:
            in_flight = sequence.in_flight
            if sequence.missing != 1 or in_flight != self._open_steps or sequence.generated == 0:
                return 0
            limit = min(limit, self.config.context - sequence.length)
            if sequence.params.max_tokens is not None:
                limit = min(limit, sequence.params.max_tokens - sequence.generated - in_flight)
        while limit > 0 and not self._has_pages(limit):
            limit //= 2
        return max(0, limit)

    def leap(self, turns: int) -> None:
        """Take as many turns as `turns_to_leap` allows. The tokens of an answer are its sequence's id."""
        for sequence in self.running:
            end = sequence.computed + turns
            # Within the pages that it can write to, a sequence needs no others, and most leaps end there.
            if not (self.kv.can_write(sequence, sequence.computed) and self.kv.can_write(sequence, end - 1)):
                self.kv.reserve(sequence, end)
            sequence.tokens.extend([answer_token(sequence)] * turns)
            sequence.generated += turns
            sequence.passes += turns
            sequence.computed += turns
            sequence.last_step += turns
            self.kv.cache_pages(sequence)
        self._step_number += turns

    def end_complete(self) -> list[Sequence]:
        """End the sequences whose answers are complete after a leap, and return them."""
        ended = [sequence for sequence in self.running if sequence.is_complete(self.config.context)]
        for sequence in ended:
            self.finish(sequence, "length")
        return ended

    def _turns_to_promotion(self) -> int:
        """The turns before the next look at sequences that are overdue (`promote_overdue`)."""
        patience = self.config.patience_steps
        if patience is None:
            return 1 << 30
        interval = max(1, patience // 8)
        return -self._step_number % interval

    def _has_pages(self, turns: int) -> bool:
        (pages,) = self.kv.pages
        needed = sum(
            pages.missing(sequence, sequence.computed, sequence.computed + turns, sequence.length)
            for sequence in self.running
        )
        return needed <= pages.free + len(pages.idle)


def answer_token(sequence: Sequence) -> int:
    """The token that a simulated device samples for a sequence: no two answers are alike."""
    return sequence.id
