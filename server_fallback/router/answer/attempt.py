"""Attempt: a side that was asked, once. What it says is told by `answering`, what it cost is known at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from nearfar.compiler.errors import NearfarError

from ...schema.common import Usage
from ...schema.route import Side
from ..sides.said import Said

# Before a second attempt, between half and all of it; twice as much before each further one.
RETRY_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class Attempt:
    """``number`` counts the side's attempts in this answer from 1; 0: it was asked before the decision. ``start`` is where in the answer it
    goes on, in characters. ``sent``: it was asked indeed. ``refused``: nothing
    came of it, so it cost nothing.

    ``num_tokens`` and ``ids`` are of what it said; of a server that does not list its tokens, pieces count. ``prompt_logprobs`` are of the
    prompt's last tokens, where they were asked for and are told.
    """

    side: Side
    number: int
    start: int = 0
    began: float = field(default_factory=monotonic)
    task: asyncio.Task[None] | None = None
    sent: bool = False
    refused: bool = False
    first_token_seconds: float | None = None
    num_tokens: int = 0
    ids: list[int] = field(default_factory=list)
    prompt_logprobs: Sequence[float] = ()
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def spoke(self) -> bool:
        return self.first_token_seconds is not None

    def hear(self, said: Said) -> None:
        if said.says_something and self.first_token_seconds is None:
            self.first_token_seconds = monotonic() - self.began
        self.num_tokens += said.num_tokens
        self.finish_reason = said.finish_reason or self.finish_reason
        self.usage = said.usage or self.usage

    def hear_prompt(self, logprobs: Sequence[float]) -> None:
        self.prompt_logprobs = logprobs

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


def retry_seconds(number: int, error: NearfarError | None) -> float:
    """How long to wait before attempt ``number`` after an error: a spread, so that what one failure threw back does not come again all at
    once, and no less than the server asks for."""
    asked = error.details.get("retry_after_seconds") if error is not None else None
    spread: float = RETRY_SECONDS * 2 ** (number - 2) * random.uniform(0.5, 1.0)
    return max(spread, float(asked)) if isinstance(asked, int | float) else spread
