"""Speculative decoding: guessing tokens cheaply and checking several of them in one step. Leviathan et al. 2023.

A sequence flows in with what it says so far; its drafts flow out. The step then samples a token behind each draft, with the very random
number that the token would have been drawn with alone, and those hold whose drafts were sampled. So the answer is, token for token, the one
without speculation, greedy or sampled; only how many tokens a step gives depends on the guesses.

Requests with penalties, a logit bias or a constraint do not speculate: what the device keeps for their slot is for one token a step. Nor do
those whose oldest tokens make way.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from .resolved_sampling import ResolvedSampling
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Speculation:
    """``tokens`` are guessed at once. "ngram": what followed the last words when they came before; "draft": what a smaller model says.

    The runner must take more sampled rows than sequences, best ``sequences * (tokens + 1)``.
    """

    kind: Literal["ngram", "draft"]
    tokens: int = 4


class Guess(NamedTuple):
    """A sequence that could use drafts, how it samples, and how many it could use at ``most``: at least one."""

    sequence: Sequence
    sampling: ResolvedSampling
    most: int


class Drafter(Protocol):
    def draft(self, guesses: Items[Guess]) -> None:
        """Set the ``drafts`` of each sequence, at most so many, from its known tokens. Raises DeviceError."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""

    def reset(self) -> None:
        """A failure left the drafter's own state unknown: start anew."""

    def close(self) -> None:
        """Give back what it holds."""
