"""Speculative decoding: tokens are guessed cheaply, and several of them are checked in one step. Leviathan et al. 2023.

The step samples a token after each draft, with the random number that this token would have been drawn with anyway. A
draft is accepted if it is the token that was sampled in its place. So the answer is, token for token, the one without
speculation, greedy or sampled; only the number of tokens in a step depends on the guesses.

Requests with penalties, a logit bias or a constraint do not speculate, because the device updates their slot once a
step; nor do requests with a context shift, nor requests with images if the drafter does not read them.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from .resolved_sampling import ResolvedSampling
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Speculation:
    """``tokens`` are guessed at once. "ngram": those that followed the last tokens before; "draft": those of a smaller
    model; "heads": those of the model's own heads.

    The runner must allow more sampled rows than sequences, ideally ``sequences * (tokens + 1)``.
    """

    kind: Literal["ngram", "draft", "heads"]
    tokens: int = 4


class Guess(NamedTuple):
    """A sequence that can use drafts, how it samples, and how many it can use at ``most``: at least one."""

    sequence: Sequence
    sampling: ResolvedSampling
    most: int

    @staticmethod
    def of(sequence: Sequence, sampling: ResolvedSampling, tokens: int, context: int) -> Guess | None:
        """At most ``tokens`` drafts; None if the sequence cannot use any now."""
        # After refused drafts, a model with states computes tokens again. A few of them leave room for further drafts.
        if sequence.in_flight > 0 or sequence.missing > (tokens if sequence.generated > 0 else 1):
            return None
        # One token comes without a guess.
        most = min(tokens, context - len(sequence.tokens))
        if sequence.params.max_tokens is not None:
            most = min(most, sequence.params.max_tokens - sequence.generated - 1)
        return Guess(sequence, sampling, most) if most > 0 else None


class Drafter(Protocol):
    @property
    def reads_images(self) -> bool:
        """Whether it guesses the answers to pictures and sounds as it guesses those to texts."""

    def draft(self, guesses: Items[Guess]) -> None:
        """Set the ``drafts`` of each sequence, from its known tokens. Raises DeviceError."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""

    def reset(self) -> None:
        """A failure left the drafter's state unknown: start anew."""

    def close(self) -> None:
        """Free what it holds."""
