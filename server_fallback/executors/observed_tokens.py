"""ObservedTokens: a source of tokens that reports to a call what it generates."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ..engine.request import (
    MAX_PROMPT_LOGPROBS,
    Completion,
    GeneratedToken,
    PromptLogprobs,
    TokenRequest,
    TokenSource,
)
from .executor import Call


class ObservedTokens:
    """A source of tokens that reports to a call the prompt's log-probabilities, each token, and the time in the queue.

    A request for zero tokens is answered without the engine.
    """

    def __init__(self, engine: TokenSource, call: Call) -> None:
        self._engine = engine
        self._call = call

    async def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken | Completion, None]:
        if request.max_tokens == 0:
            yield Completion("length", len(request.prompt_ids), 0, 0, 0.0, 0.0, 0.0)
            return
        if self._call.observe_prompt_logprobs is not None:
            request = replace(request, prompt_logprobs=MAX_PROMPT_LOGPROBS)
        async with aclosing(self._engine.generate(request)) as tokens:
            async for output in tokens:
                if isinstance(output, PromptLogprobs):
                    if self._call.observe_prompt_logprobs is not None:
                        self._call.observe_prompt_logprobs(output.values)
                    continue
                if isinstance(output, Completion):
                    if self._call.observe_queue is not None:
                        self._call.observe_queue(output.queue_seconds)
                elif self._call.observe_token is not None:
                    self._call.observe_token(output.token_id)
                yield output
