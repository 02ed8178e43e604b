"""A step: what the device does at once, as the scheduler hands it out; and what comes of it, as the scheduler tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """``count`` positions of a sequence from ``start`` on; with ``sample``, the token after the last of them is wanted.

    The last positions hold ``drafts``, guesses at tokens to come; the tokens after each of them, and before the first, are wanted then.
    Of the ``told`` positions before the one with ``sample``, the last ones without it, it is wanted how likely the prompt's next token is.
    """

    sequence: Sequence
    start: int
    count: int
    sample: bool
    drafts: tuple[int, ...] = ()
    told: int = 0

    @property
    def num_sampled(self) -> int:
        """Its rows among those that the device samples: the told ones, then the others."""
        return self.told + (1 + len(self.drafts) if self.sample else 0)


@dataclass(frozen=True, slots=True)
class Step:
    """``copies`` are pages to copy before, from the first of a pair to the second; ``admitted`` started to run since the last step."""

    number: int
    rows: list[Row]
    copies: list[tuple[int, int]]
    admitted: list[Sequence]
    preempted: list[Sequence]


@dataclass(slots=True)
class OpenStep:
    """A step being put together. ``spare`` drafts may still be checked."""

    budget: int
    spare: int
    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class Event(NamedTuple):
    """What became of a sequence. "failed": the device could not compute its token. ``sample`` is its place among the sampled tokens.

    "prompt": how likely the prompt's ``token_id`` is can be read at ``sample``.
    """

    kind: Literal["prompt", "token", "finished", "failed"]
    sequence: Sequence
    token_id: int = -1
    sample: int = -1
