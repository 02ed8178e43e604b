"""Verification: an answer of which somebody far away guesses the tokens. Drafts flow in, round by round; what holds of them flows out.

A round is a request of its own, with the drafts checked in one step and one token more; between rounds nothing of it is in the engine but
pages in the prefix cache, the last, unfilled one included. So a client that is slow, or gone, holds nothing that others wait for, and a
round that comes too late finds less in the cache and is answered all the same. The tokens are those of the same request without drafts,
greedy or sampled. Leviathan et al. 2023.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from .request import Completion, FinishReason, GeneratedToken, TokenRequest, TokenSource


@dataclass(frozen=True, slots=True)
class Verified:
    """``token_ids`` are new: the drafts that held, and one token more, unless the answer ends. ``finish_reason`` None: it goes on.

    ``cached_tokens``: of the prompt, with what was answered before, those whose keys and values were there.
    """

    token_ids: list[int]
    finish_reason: FinishReason | None
    cached_tokens: int


class VerifyingSource(TokenSource, Protocol):
    """`TokenEngine`, as far as it is needed here."""

    @property
    def context(self) -> int: ...

    def arrive(self) -> int: ...


class Verification:
    """One answer, for one task at a time. ``request`` is as for `TokenEngine.generate`, without drafts; without a seed it gets one."""

    def __init__(self, engine: VerifyingSource, request: TokenRequest) -> None:
        seed = secrets.randbits(32) if request.sampling.seed is None else request.sampling.seed
        self._engine = engine
        # Later rounds are where the first one was, or they would queue behind all that came in between.
        self._request = replace(request, sampling=replace(request.sampling, seed=seed), arrival=engine.arrive())
        self._tokens = list(request.prompt_ids)
        self.finish_reason: FinishReason | None = None

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self._tokens) - len(self._request.prompt_ids)

    async def check(self, drafts: Sequence[int]) -> Verified:
        """Go on by the drafts that hold and one token more; by one token where there are none. The answer must not have ended.

        Raises what `TokenEngine.generate` raises. After an error, and where it is cancelled, the answer is as it was before.
        """
        assert self.finish_reason is None, "the answer has ended"
        left = None if self._request.max_tokens is None else self._request.max_tokens - self.answered
        answered = self._request.answered + self.answered
        request = replace(self._request, prompt_ids=list(self._tokens), max_tokens=left, drafts=drafts, answered=answered)
        token_ids: list[int] = []
        end: Completion | None = None
        async with aclosing(self._engine.generate(request)) as news:
            async for each in news:
                if isinstance(each, Completion):
                    end = each
                elif isinstance(each, GeneratedToken):
                    token_ids.append(each.token_id)
        assert end is not None
        self._tokens += token_ids
        if end.finish_reason == "stop" or len(token_ids) == left or len(self._tokens) > self._engine.context:
            self.finish_reason = end.finish_reason
        return Verified(token_ids, self.finish_reason, end.cached_tokens)
