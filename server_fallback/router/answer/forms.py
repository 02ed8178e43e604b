"""The client's form of an answer: what sides say flows in, chunks of one chat or completion flow out, with the route where it changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar
from uuid import uuid4

from ...schema.chat import ChatCompletionChunk, ChatCompletionRequest, ChatLogprobs, ChunkChoice, Delta
from ...schema.common import FinishReason, TokenLogprob, Usage
from ...schema.completions import CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest
from ...schema.route import Route
from ..sides.said import Said

ChunkT = TypeVar("ChunkT", ChatCompletionChunk, CompletionChunk)
ChunkOut = TypeVar("ChunkOut", ChatCompletionChunk, CompletionChunk, covariant=True)


class Form(Protocol[ChunkOut]):
    """``route`` is given where it is due. ``start``: how many characters of the answer stand before. ``first``: nothing was shown yet."""

    def piece(self, said: Said, start: int, route: Route | None, *, first: bool) -> Iterator[ChunkOut]: ...

    def ending(self, finish_reason: str, usage: Usage, route: Route, *, first: bool) -> Iterator[ChunkOut]:
        """The last chunks: the end, then the usage."""


class ChatForm:
    """``top``: of each token so many alternatives are shown, None for no log-probabilities."""

    def __init__(self, model: str, request: ChatCompletionRequest) -> None:
        self._model, self._id, self._created = model, f"chatcmpl-{uuid4()}", int(time.time())
        self._top = (request.top_logprobs or 0) if request.logprobs else None

    def piece(self, said: Said, start: int, route: Route | None, *, first: bool) -> Iterator[ChatCompletionChunk]:  # noqa: ARG002
        if first:
            yield self._chunk(Delta(role="assistant", content=""), route=route)
            route = None
        shown = None if self._top is None or not said.tokens else ChatLogprobs(content=trimmed(said.tokens, self._top))
        content = None if (said.tool_calls or said.reasoning) and not said.text else said.text
        delta = Delta(content=content, reasoning_content=said.reasoning or None, tool_calls=said.tool_calls)
        yield self._chunk(delta, logprobs=shown, route=route)

    def ending(self, finish_reason: str, usage: Usage, route: Route, *, first: bool) -> Iterator[ChatCompletionChunk]:
        if first:
            yield self._chunk(Delta(role="assistant", content=""), route=route)
        yield self._chunk(Delta(), finish_reason=finish_reason, route=route)
        yield ChatCompletionChunk(
            id=self._id, created=self._created, model=self._model, choices=[], usage=usage, route=route
        )

    def _chunk(
        self,
        delta: Delta,
        *,
        logprobs: ChatLogprobs | None = None,
        finish_reason: FinishReason | None = None,
        route: Route | None = None,
    ) -> ChatCompletionChunk:
        choice = ChunkChoice(index=0, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=[choice], route=route)


class CompletionForm:
    """As `ChatForm`."""

    def __init__(self, model: str, request: CompletionRequest) -> None:
        self._model, self._id, self._created = model, f"cmpl-{uuid4()}", int(time.time())
        self._top = request.logprobs

    def piece(self, said: Said, start: int, route: Route | None, *, first: bool) -> Iterator[CompletionChunk]:  # noqa: ARG002
        shown = None if self._top is None or not said.tokens else listed(trimmed(said.tokens, self._top), start)
        yield self._chunk(CompletionChoice(index=0, text=said.text, logprobs=shown), route=route)

    def ending(self, finish_reason: str, usage: Usage, route: Route, *, first: bool) -> Iterator[CompletionChunk]:  # noqa: ARG002
        yield self._chunk(CompletionChoice(index=0, text="", finish_reason=finish_reason), route=route)
        yield self._chunk(usage=usage, route=route)

    def _chunk(
        self, *choices: CompletionChoice, usage: Usage | None = None, route: Route | None = None
    ) -> CompletionChunk:
        return CompletionChunk(
            id=self._id, created=self._created, model=self._model, choices=list(choices), usage=usage, route=route
        )


def trimmed(tokens: Sequence[TokenLogprob], top: int) -> list[TokenLogprob]:
    """With as many alternatives as the client asked for; the router asks for its own."""
    return [token.model_copy(update={"top_logprobs": token.top_logprobs[:top]}) for token in tokens]


def listed(tokens: Sequence[TokenLogprob], start: int) -> CompletionLogprobs:
    offsets = [start + sum(len(token.token) for token in tokens[:index]) for index in range(len(tokens))]
    return CompletionLogprobs(
        tokens=[token.token for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[{top.token: top.logprob for top in token.top_logprobs} for token in tokens],
        text_offset=offsets,
    )
