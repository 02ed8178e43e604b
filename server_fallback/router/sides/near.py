"""The near side: a model on this machine. It also returns the model's log-probabilities if they are needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from nearfar.compiler.runtime.errors import RequestError

from ...executors.executor import Abilities, Call, Executor, TellsAbilities, Transcribes
from ...schema.completions import AnswerRequest, CompletionRequest
from ...schema.tokenize import DetokenizeRequest, TokenizeRequest
from ...text.output import streamed
from .answer_piece import AnswerPiece, piece_of

# Decoding a token may need up to this many tokens after it.
UNDECIDED_TOKENS = 8


class NearSide:
    """Owns the executor and closes it. ``transcriber``, which stays the caller's to close, writes down recordings for
    it (`router/answer/heard.py`, `describer.py`).
    """

    def __init__(self, executor: Executor, name: str, transcriber: Transcribes | None = None) -> None:
        self.executor, self.name, self.transcriber = executor, name, transcriber
        self.abilities: Abilities | None = executor.abilities() if isinstance(executor, TellsAbilities) else None

    @property
    def model(self) -> str:
        """The name of its model in its manifest."""
        return (self.abilities and self.abilities.model) or self.name

    @property
    def embeds(self) -> bool:
        return self.abilities is not None and self.abilities.embeds

    @property
    def reads_images(self) -> bool:
        return self.abilities is not None and self.abilities.vision

    @property
    def reads_videos(self) -> bool:
        return self.abilities is not None and self.abilities.video

    @property
    def hears(self) -> bool:
        """Whether its model reads recordings itself."""
        return self.abilities is not None and self.abilities.hears

    @property
    def available(self) -> bool:
        """Whether it can generate text now."""
        return self.executor.state().ready and not self.embeds

    async def answer(
        self, request: AnswerRequest, call: Call, logprobs: int | None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """``logprobs``: return each token's log-probability and this many alternatives, whatever the client requested.

        Raises as `Executor`.
        """
        if logprobs is not None:
            request = with_logprobs(request, logprobs)
        async with aclosing(streamed(partial(self.executor.answer, request, call))) as chunks:
            async for chunk in chunks:
                yield piece_of(chunk)

    async def prompt_ids(self, request: AnswerRequest) -> Sequence[int] | None:
        """The prompt's tokens; None if the model cannot read the prompt.

        The request for an answer reports that error. A recording is not written down only to count its tokens.
        """
        if isinstance(request, CompletionRequest):
            if not isinstance(request.prompt, str):
                return [part for part in request.prompt if isinstance(part, int)]
            body = TokenizeRequest(model=self.name, prompt=request.prompt)
        else:
            body = TokenizeRequest(model=self.name, messages=request.messages, tools=request.tools)
        try:
            return (await self.executor.tokenize(body)).tokens
        except RequestError:
            return None

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """Raises RequestError for ids that are not in the vocabulary."""
        return (await self.executor.detokenize(DetokenizeRequest(model=self.name, tokens=list(token_ids)))).prompt

    async def ids_of(self, text: str, token_ids: Sequence[int]) -> list[int] | None:
        """The tokens of an answer that make up ``text`` exactly; None if no leading part of them does.

        The text of the last tokens may not be complete yet, or they may be tokens without a text.
        """
        for end in range(len(token_ids), max(0, len(token_ids) - UNDECIDED_TOKENS), -1):
            if await self.text_of(token_ids[:end]) == text:
                return list(token_ids[:end])
        return None

    async def close(self) -> None:
        await self.executor.close()


def with_logprobs(request: AnswerRequest, logprobs: int) -> AnswerRequest:
    if isinstance(request, CompletionRequest):
        return request.model_copy(update={"logprobs": max(logprobs, request.logprobs or 0)})
    if request.logprobs or request.top_logprobs is None:
        return request.model_copy(update={"logprobs": True, "top_logprobs": max(logprobs, request.top_logprobs or 0)})
    return request
