"""The client's form of an answer: makes chunks of one chat or completion from the pieces of the sides, with the route
whenever it changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar
from uuid import uuid4

from ...schema.chat import ChatCompletionChunk, ChatCompletionRequest, ChatLogprobs, ChunkChoice, Delta
from ...schema.common import FinishReason, TokenLogprob, Usage
from ...schema.completions import CompletionChunk, CompletionChunkChoice, CompletionLogprobs, CompletionRequest
from ...schema.route import Route
from ..sides.answer_piece import AnswerPiece

ChunkT = TypeVar("ChunkT", ChatCompletionChunk, CompletionChunk)
ChunkOut = TypeVar("ChunkOut", ChatCompletionChunk, CompletionChunk, covariant=True)


class Form(Protocol[ChunkOut]):
    """``route`` is set if this chunk must carry it.

    ``start``: the number of characters of the answer before this piece. ``first``: nothing was shown yet.
    """

    def chunks(self, piece: AnswerPiece, start: int, route: Route | None, *, first: bool) -> Iterator[ChunkOut]: ...

    def last_chunks(self, finish_reason: str, usage: Usage, route: Route, *, first: bool) -> Iterator[ChunkOut]:
        """The last chunks: first the finish_reason, then the usage."""


class ChatForm:
    """``top``: the number of alternatives shown for each token; None for no log-probabilities."""

    def __init__(self, model: str, request: ChatCompletionRequest) -> None:
        self._model, self._id, self._created = model, f"chatcmpl-{uuid4()}", int(time.time())
        self._top = (request.top_logprobs or 0) if request.logprobs else None

    def chunks(
        self,
        piece: AnswerPiece,
        start: int,  # noqa: ARG002
        route: Route | None,
        *,
        first: bool,
    ) -> Iterator[ChatCompletionChunk]:
        if first:
            yield self._chunk(Delta(role="assistant", content=""), route=route)
            route = None
        shown = (
            None if self._top is None or not piece.tokens else ChatLogprobs(content=trimmed(piece.tokens, self._top))
        )
        content = None if (piece.tool_calls or piece.reasoning) and not piece.text else piece.text
        delta = Delta(content=content, reasoning_content=piece.reasoning or None, tool_calls=piece.tool_calls)
        yield self._chunk(delta, logprobs=shown, route=route)

    def last_chunks(
        self, finish_reason: str, usage: Usage, route: Route, *, first: bool
    ) -> Iterator[ChatCompletionChunk]:
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
    """See `ChatForm`."""

    def __init__(self, model: str, request: CompletionRequest) -> None:
        self._model, self._id, self._created = model, f"cmpl-{uuid4()}", int(time.time())
        self._top = request.logprobs

    def chunks(self, piece: AnswerPiece, start: int, route: Route | None, *, first: bool) -> Iterator[CompletionChunk]:  # noqa: ARG002
        shown = None if self._top is None or not piece.tokens else listed(trimmed(piece.tokens, self._top), start)
        yield self._chunk(CompletionChunkChoice(index=0, text=piece.text, logprobs=shown), route=route)

    def last_chunks(self, finish_reason: str, usage: Usage, route: Route, *, first: bool) -> Iterator[CompletionChunk]:  # noqa: ARG002
        yield self._chunk(CompletionChunkChoice(index=0, text="", finish_reason=finish_reason), route=route)
        yield self._chunk(usage=usage, route=route)

    def _chunk(
        self, *choices: CompletionChunkChoice, usage: Usage | None = None, route: Route | None = None
    ) -> CompletionChunk:
        return CompletionChunk(
            id=self._id, created=self._created, model=self._model, choices=list(choices), usage=usage, route=route
        )


def trimmed(tokens: Sequence[TokenLogprob], top: int) -> list[TokenLogprob]:
    """The tokens with as many alternatives as the client requested; the router may have requested more."""
    return [token.model_copy(update={"top_logprobs": token.top_logprobs[:top]}) for token in tokens]


def listed(tokens: Sequence[TokenLogprob], start: int) -> CompletionLogprobs:
    offsets = [start + sum(len(token.token) for token in tokens[:index]) for index in range(len(tokens))]
    return CompletionLogprobs(
        tokens=[token.token for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[{top.token: top.logprob for top in token.top_logprobs} for token in tokens],
        text_offset=offsets,
    )
