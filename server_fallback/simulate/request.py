"""Requests of a simulation, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import NamedTuple

from ..schema.route import Side

NEVER = -1.0


class Segment(NamedTuple):
    """``tokens`` tokens of a prompt. Segments of one ``text`` have the same tokens, those of another text others."""

    text: int
    tokens: int


@dataclass(eq=False, slots=True)
class SimulatedRequest:
    """``number`` rises in the order of arrival. The answer ends after ``output_tokens``, at least 1. ``device`` is that
    of the user, if there are devices. ``turn``: how many seconds after this answer the conversation goes on, and the
    next request.

    The rest is what a simulation records, in seconds of its clock: ``first`` and ``finish`` are the times of the first
    and the last token as the client sees them, NEVER before that. ``started``: when a device began with it. ``side`` is
    the one that answers, and ``workers`` are those of the cluster that computed a part. ``cached_tokens`` of the prompt
    were computed by nobody for this request, ``prefilled_tokens`` by a prefill worker for the one that answers.
    """

    number: int
    arrival: float
    segments: Sequence[Segment]
    output_tokens: int
    device: int = 0
    turn: tuple[float, SimulatedRequest] | None = None

    started: float = NEVER
    first: float = NEVER
    finish: float = NEVER
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    side: Side | None = "far"
    workers: list[int] = field(default_factory=list)
    # Why nobody answers it; "" if somebody does.
    refused: str = ""
    # The context ends the answer before it has all of its tokens.
    is_cut: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    @property
    def first_token_seconds(self) -> float:
        return self.first - self.arrival

    @property
    def token_seconds(self) -> float | None:
        """The mean time between two tokens of the answer; None if it has one."""
        if self.output_tokens < 2:
            return None
        return (self.finish - self.first) / (self.output_tokens - 1)

    def prompt(self) -> list[int]:
        """Token ids, of which only the equality matters."""
        return list(chain.from_iterable(repeat(segment.text, segment.tokens) for segment in self.segments))
