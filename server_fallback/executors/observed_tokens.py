"""ObservedTokens: a source of tokens that reports its tokens to a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeGuard

from ..engine.request import (
    MAX_PROMPT_LOGPROBS,
    Completion,
    GeneratedToken,
    PromptLogprobs,
    TokenHandler,
    TokenRequest,
    TokenSource,
    batches_of,
    items_of,
)
from .executor import Call


class ObservedTokens:
    """A source of tokens that reports to a call the prompt's log-probabilities, each token, and the time in the queue.

    A request for zero tokens is answered without the engine.
    """

    def __init__(self, engine: TokenSource, call: Call) -> None:
        self._engine = engine
        self._call = call

    def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken | Completion, None]:
        return items_of(self.batches(request))

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[GeneratedToken | Completion], None]:
        if request.max_tokens == 0:
            yield [Completion("length", len(request.prompt_ids), 0, 0, 0.0, 0.0, 0.0)]
            return
        if self._call.observe_prompt_logprobs is not None:
            request = replace(request, prompt_logprobs=MAX_PROMPT_LOGPROBS)
        # A token that is observed is yielded, so that the caller's text matches the tokens that it has observed.
        handle = handle if self._call.observe_token is None else None
        async with aclosing(batches_of(self._engine, request, handle)) as batches:
            async for batch in batches:
                if self._call.observe_token is None:
                    # Nothing is reported of a token, and only the last batch has another item than tokens.
                    if isinstance(batch[-1], GeneratedToken) and not request.prompt_logprobs:
                        yield batch  # type: ignore[misc]
                        continue
                    if observed := [item for item in batch if self._observe(item)]:
                        yield observed
                    continue
                # One by one, for the same reason.
                for item in batch:
                    if self._observe(item):
                        yield [item]

    def _observe(self, item: PromptLogprobs | GeneratedToken | Completion) -> TypeGuard[GeneratedToken | Completion]:
        """Report an item. Returns whether the caller gets it."""
        if isinstance(item, PromptLogprobs):
            if self._call.observe_prompt_logprobs is not None:
                self._call.observe_prompt_logprobs(item.values)
            return False
        if isinstance(item, Completion):
            if self._call.observe_queue is not None:
                self._call.observe_queue(item.queue_seconds)
        elif self._call.observe_token is not None:
            self._call.observe_token(item.token_id)
        return True
