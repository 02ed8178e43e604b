"""A step: what the device computes at once. The scheduler builds steps, and commits them when their tokens are read
back.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .cache_kind import Copies
from .sequence import Sequence
from .states import StateTable


class Row(NamedTuple):
    """``length`` positions of a sequence, from ``start`` on; the last ``num_sampled`` of them are sampled.

    The first ``prompt_logprobs`` sampled positions give log-probabilities of the prompt's own tokens. The others sample
    the answer: one token after the last known one, and one after each of the ``drafts``, which are the last positions
    then.
    """

    sequence: Sequence
    start: int
    length: int
    num_sampled: int
    prompt_logprobs: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def sample(self) -> bool:
        """Whether it samples the answer."""
        return self.num_sampled > self.prompt_logprobs

    @property
    def state(self) -> tuple[int, int] | None:
        """The slots from which the sequence's state is read and into which it is written; None without states."""
        table = self.sequence.tables[-1]
        return table.pair(self.start) if isinstance(table, StateTable) else None

    @property
    def prompt_tokens(self) -> Items[int]:
        """The tokens of the prompt that get a log-probability: those after the first sampled positions."""
        after = self.start + self.length - self.num_sampled + 1
        return self.sequence.tokens[after : after + self.prompt_logprobs]

    def num_accepted(self, token_ids: Items[int]) -> int:
        """The number of its drafts that agree with the tokens that were sampled for the answer."""
        return next((index for index, draft in enumerate(self.drafts) if draft != token_ids[index]), len(self.drafts))


@dataclass(frozen=True, slots=True)
class Step:
    """``copies`` are, by cache kind, what to copy first. ``admitted`` and
    ``preempted``: since the step before.
    """

    rows: list[Row]
    copies: list[Copies]
    admitted: list[Sequence]
    preempted: list[Sequence]


@dataclass(slots=True)
class OpenStep:
    """A step being built. ``budget`` positions and ``draft_budget`` drafts still fit; ``num_sampled`` rows are sampled
    so far.
    """

    number: int
    budget: int
    draft_budget: int
    num_sampled: int = 0
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.budget -= row.length
        self.num_sampled += row.num_sampled

    def has(self, sequence: Sequence) -> bool:
        return sequence.last_step == self.number


class Event(NamedTuple):
    """The effect of a step on a sequence. ``sample`` is the index among the step's sampled rows.

    "prompt_logprob": the log-probability of the prompt's ``token_id`` can be read at ``sample``. "token": ``token_id``
    was sampled. "finished": the answer is complete; ``token_id`` ended it and is not part of it, -1 if none did.
    "failed": the device could not compute a row of the sequence, which has ended.
    """

    kind: Literal["prompt_logprob", "token", "finished", "failed"]
    sequence: Sequence
    token_id: int = -1
    sample: int = -1
