"""Drafts of the near model: what it would say behind the tokens so far, and, while the far side checks that, behind its own guesses.

Tokens that hold flow in, guesses flow out. Each guess is a request to the near engine for a few tokens, whose pages the next one finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from nearfar.compiler.errors import NearfarError

from ...engine.request import Completion, GeneratedToken, TokenRequest
from ...engine.verification import VerifyingSource


class NearDrafts:
    """Of one answer, for one task. ``most`` guesses at a time.

    A near engine that fails guesses nothing more, for the answer does not need it: ``failure`` says why then.
    """

    def __init__(self, near: VerifyingSource, request: TokenRequest, most: int) -> None:
        self.failure: NearfarError | None = None
        self._near, self._request, self._most = near, replace(request, arrival=near.arrive()), most
        self._tokens = list(request.prompt_ids)
        # Guesses that are made, and those behind them that are being made.
        self._drafts: list[int] = []
        self._ahead: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()

    async def next(self) -> list[int]:
        """Guesses at the next tokens, none where the near model says nothing more or its context is full."""
        if self._task is None and not self._drafts:
            self._begin(self._most)
        if self._task is not None:
            await self._task
            self._drafts += self._ahead
            self._forget_ahead()
        return self._drafts[: self._most]

    def go_on(self) -> None:
        """Guess what follows the guesses: one token that the far side will say by itself, and the drafts of the next round."""
        if self._drafts and self._task is None:
            self._begin(self._most + 1)

    async def learn(self, token_ids: Sequence[int]) -> None:
        """These hold, in the place of the guesses. What was guessed ahead is kept where it agrees."""
        held, self._drafts = self._drafts, []
        if self._task is not None:
            # Whether the token behind the guesses was foreseen is known with the first one that was guessed ahead.
            if list(token_ids[:-1]) == held and not self._first.is_set():
                await self._first.wait()
            if [*held, *self._ahead[:1]] == list(token_ids):
                del self._ahead[:1]
                self._tokens += token_ids
                return
            await self.close()
        self._tokens += token_ids

    async def close(self) -> None:
        """Leave what is being made."""
        task = self._task
        self._forget_ahead()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self, count: int) -> None:
        self._first.clear()
        self._task = asyncio.create_task(self._make(count, [*self._tokens, *self._drafts], self._ahead))

    def _forget_ahead(self) -> None:
        # A new list: a task that is being cancelled may still write to the old one.
        self._task, self._ahead = None, []

    async def _make(self, count: int, tokens: list[int], into: list[int]) -> None:
        """Guess ``count`` tokens behind these."""
        answered = len(tokens) - len(self._request.prompt_ids)
        count = min(count, self._near.context - len(tokens))
        if self._request.max_tokens is not None:
            # The last token of all comes without a guess.
            count = min(count, self._request.max_tokens - answered - 1)
        try:
            if count > 0 and self.failure is None:
                asked = replace(self._request, prompt_ids=tokens, max_tokens=count, answered=answered)
                async with aclosing(self._near.generate(asked)) as news:
                    async for each in news:
                        if isinstance(each, Completion):
                            break
                        if isinstance(each, GeneratedToken):
                            into.append(each.token_id)
                            self._first.set()
        except NearfarError as error:
            self.failure = error
        finally:
            self._first.set()
