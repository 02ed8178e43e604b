"""Log-probabilities of a prompt's last tokens: the rows that must be sampled for them."""

from __future__ import annotations


class PromptLogprobRows:
    """How many rows of a prompt are still to be sampled: ``pending`` ones are not scheduled, ``scheduled`` ones are not
    read back.

    The row at position p gives the log-probability of the token at p + 1, so these rows are the last ones before the
    row that samples the first token of the answer. They are never taken from a cache, which holds keys and values but
    no logits.
    """

    __slots__ = ("pending", "scheduled")

    def __init__(self, pending: int) -> None:
        self.pending, self.scheduled = pending, 0

    def schedule(self, rows: int) -> None:
        self.pending -= rows
        self.scheduled += rows

    def commit(self, rows: int) -> None:
        self.scheduled -= rows

    def restart(self) -> None:
        """The scheduled rows will never be read back; schedule them again."""
        self.schedule(-self.scheduled)
