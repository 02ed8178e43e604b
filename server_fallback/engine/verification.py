"""Verification: an answer whose tokens a client guesses. Each round checks the client's drafts and returns the accepted
ones.

A round is a request of its own: its drafts are checked in one step, which gives one token more. Between rounds the
engine holds nothing of the answer but pages in the prefix cache, including the last, partly filled one. So a client
that is slow or gone holds nothing that others wait for; a round that comes late may find less in the cache, and is
answered anyway. The tokens are those of the same request without drafts, greedy or sampled. Leviathan et al. 2023.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from .request import AnswerEnd, FinishReason, GeneratedToken, TokenRequest, TokenSource


@dataclass(frozen=True, slots=True)
class Verified:
    """``token_ids`` are new: the accepted drafts, and one token more unless the answer ends. ``finish_reason`` None: it
    continues.

    ``cached_tokens``: how many tokens of the prompt and of the answer so far were in a cache.
    """

    token_ids: list[int]
    finish_reason: FinishReason | None
    cached_tokens: int


class VerifyingSource(TokenSource, Protocol):
    """The part of `TokenEngine` that is needed here."""

    @property
    def context(self) -> int: ...

    def arrive(self) -> int: ...


class Verification:
    """One answer, used by one task at a time. ``request`` has no drafts; if it has no seed, it gets one."""

    def __init__(self, engine: VerifyingSource, request: TokenRequest) -> None:
        seed = secrets.randbits(32) if request.sampling.seed is None else request.sampling.seed
        self._engine = engine
        # Later rounds have the rank of the first one, or they would queue behind all requests that arrived in between.
        self._request = replace(request, sampling=replace(request.sampling, seed=seed), arrival=engine.arrive())
        self._tokens = list(request.prompt_ids)
        self.finish_reason: FinishReason | None = None

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self._tokens) - len(self._request.prompt_ids)

    async def check(self, drafts: Sequence[int]) -> Verified:
        """Continue the answer by the accepted drafts and one token more. It must not have ended.

        Raises what `TokenEngine.generate` raises. After an error or a cancellation, the answer is as it was before.
        """
        assert self.finish_reason is None, "the answer has ended"
        left = None if self._request.max_tokens is None else self._request.max_tokens - self.answered
        answered = self._request.answered + self.answered
        request = replace(
            self._request, prompt_ids=list(self._tokens), max_tokens=left, drafts=drafts, answered=answered
        )
        token_ids: list[int] = []
        end: AnswerEnd | None = None
        async with aclosing(self._engine.generate(request)) as items:
            async for item in items:
                if isinstance(item, AnswerEnd):
                    end = item
                elif isinstance(item, GeneratedToken):
                    token_ids.append(item.token_id)
        assert end is not None
        self._tokens += token_ids
        if end.finish_reason == "stop" or len(token_ids) == left or len(self._tokens) > self._engine.context:
            self.finish_reason = end.finish_reason
        return Verified(token_ids, self.finish_reason, end.cached_tokens)
