"""ObservedTokens: a source of tokens that reports its tokens to a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ..engine.request import (
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

# How many of the prompt's last tokens are observed.
OBSERVED = 32


class ObservedTokens:
    """A source of tokens that reports to a call the prompt's log-probabilities, each token, and the time in the queue.

    A request for zero tokens is answered without the engine, unless it wants log-probabilities of the prompt.
    """

    def __init__(self, engine: TokenSource, call: Call) -> None:
        self._engine = engine
        self._call = call

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | Completion, None]:
        return items_of(self.batches(request))

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | Completion], None]:
        wanted = request.prompt_logprobs
        if request.max_tokens == 0:
            async for batch in self._only_prompt(request):
                yield batch
            return
        if self._call.observe_prompt_logprobs is not None:
            request = replace(request, prompt_logprobs=max(wanted, OBSERVED))
        # A token that is observed is yielded, so that the caller's text matches the tokens that it has observed.
        handle = handle if self._call.observe_token is None else None
        async with aclosing(batches_of(self._engine, request, handle)) as batches:
            async for batch in batches:
                if self._call.observe_token is None:
                    # Nothing is reported of a token, and only the last batch has another item than tokens.
                    if isinstance(batch[-1], GeneratedToken) and not request.prompt_logprobs:
                        yield batch
                        continue
                    if observed := [item for item in batch if self._observe(item, wanted)]:
                        yield observed
                    continue
                # One by one, for the same reason.
                for item in batch:
                    if self._observe(item, wanted):
                        yield [item]

    async def _only_prompt(
        self, request: TokenRequest
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | Completion], None]:
        """The prompt's log-probabilities, and an answer without tokens: the engine's own has at least one."""
        end = Completion("length", len(request.prompt_ids), 0, 0, 0.0, 0.0, 0.0)
        if request.prompt_logprobs > 0:
            prompt = replace(request, max_tokens=1, min_tokens=0, constraint=None)
            async with aclosing(items_of(batches_of(self._engine, prompt))) as items:
                async for item in items:
                    if isinstance(item, PromptLogprobs):
                        yield [item]
                    elif isinstance(item, Completion):
                        self._observe(item, 0)
                        end = replace(item, finish_reason="length", completion_tokens=0, end_token=None)
        yield [end]

    def _observe(self, item: PromptLogprobs | GeneratedToken | Completion, wanted: int) -> bool:
        """Report an item. Returns whether the caller gets it; it wants ``wanted`` log-probabilities of the prompt."""
        if isinstance(item, PromptLogprobs):
            if self._call.observe_prompt_logprobs is not None:
                self._call.observe_prompt_logprobs(item.values[-OBSERVED:])
            return wanted > 0
        if isinstance(item, Completion):
            if self._call.observe_queue is not None:
                self._call.observe_queue(item.queue_seconds)
        elif self._call.observe_token is not None:
            self._call.observe_token(item.token_id)
        return True
