"""Drafts of the near model: how it would continue the tokens so far, and, while the far side checks that, how it would
continue its own guesses.

Each draft is a request to the near engine for a few tokens; the next one finds its pages in the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from nearfar.compiler.runtime.errors import NearfarError

from ...engine.request import AnswerEnd, GeneratedToken, TokenRequest
from ...engine.verification import VerifyingSource


class NearDrafts:
    """The drafts of one answer, for one task, at most ``max_guesses`` at a time.

    If the near engine fails, there are no more guesses, because the answer does not need them; ``failure`` has the
    error.
    """

    def __init__(self, near: VerifyingSource, request: TokenRequest, max_guesses: int) -> None:
        self.failure: NearfarError | None = None
        self._near, self._request, self._max_guesses = near, replace(request, arrival=near.arrive()), max_guesses
        self._tokens = list(request.prompt_ids)
        # Finished guesses, and the guesses after them that are being made.
        self._drafts: list[int] = []
        self._ahead: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()

    async def next(self) -> list[int]:
        """Guesses at the next tokens; none if the near model has ended its answer or its context is full."""
        if self._task is None and not self._drafts:
            self._begin(self._max_guesses)
        if self._task is not None:
            await self._task
            self._drafts += self._ahead
            self._drop_ahead()
        return self._drafts[: self._max_guesses]

    def draft_ahead(self) -> None:
        """Guess what follows the guesses: one token that the far side will add, and the drafts of the next round."""
        if self._drafts and self._task is None:
            self._begin(self._max_guesses + 1)

    async def accept(self, token_ids: Sequence[int]) -> None:
        """Accept these tokens in place of the guesses. Guesses made ahead are kept if they agree."""
        guesses, self._drafts = self._drafts, []
        if self._task is not None:
            # Whether the token after the guesses was predicted is known with the first guess made ahead.
            if list(token_ids[:-1]) == guesses and not self._first.is_set():
                await self._first.wait()
            if [*guesses, *self._ahead[:1]] == list(token_ids):
                del self._ahead[:1]
                self._tokens += token_ids
                return
            await self.close()
        self._tokens += token_ids

    async def close(self) -> None:
        """Cancel the guesses that are being made."""
        task = self._task
        self._drop_ahead()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self, count: int) -> None:
        self._first.clear()
        self._task = asyncio.create_task(self._draft(count, [*self._tokens, *self._drafts], self._ahead))

    def _drop_ahead(self) -> None:
        # A new list: a task that is being cancelled may still write to the old one.
        self._task, self._ahead = None, []

    async def _draft(self, count: int, tokens: list[int], into: list[int]) -> None:
        """Guess ``count`` tokens after these."""
        answered = len(tokens) - len(self._request.prompt_ids)
        count = min(count, self._near.context - len(tokens))
        if self._request.max_tokens is not None:
            # The last token of the answer needs no guess.
            count = min(count, self._request.max_tokens - answered - 1)
        try:
            if count > 0 and self.failure is None:
                request = replace(self._request, prompt_ids=tokens, max_tokens=count, answered=answered)
                async with aclosing(self._near.generate(request)) as outputs:
                    async for output in outputs:
                        if isinstance(output, AnswerEnd):
                            break
                        if isinstance(output, GeneratedToken):
                            into.append(output.token_id)
                            self._first.set()
        except NearfarError as error:
            self.failure = error
        finally:
            self._first.set()
