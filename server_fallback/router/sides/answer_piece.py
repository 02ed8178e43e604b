"""AnswerPiece: the content of one chunk of a side's answer, for chats and completions alike, and the chunk that the
client gets for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from ...schema.chat import (
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    SoundTranscript,
    ToolCallDelta,
)
from ...schema.common import TokenLogprob, TopLogprob, Usage
from ...schema.completions import AnswerRequest, CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from ...schema.receipt import AnswerPart, SignedReceipt
from ...schema.route import Route

Chunk = ChatCompletionChunk | CompletionChunk


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """``tokens`` are the tokens whose text is emitted, if log-probabilities were requested.

    ``usage`` comes last, after ``finish_reason``, and with it ``receipts``. ``transcripts``: what the side wrote down
    of recordings. ``annotations``: the citations of far's answer.
    """

    text: str = ""
    tool_calls: list[ToolCallDelta] | None = None
    tokens: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    reasoning: str = ""
    transcripts: Sequence[SoundTranscript] | None = None
    receipts: Sequence[SignedReceipt] = ()
    annotations: Sequence[dict[str, Any]] | None = None
    stop_reason: str | None = None

    @property
    def has_content(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls or self.tokens or self.annotations)

    @property
    def num_tokens(self) -> int:
        """If a server does not list its tokens, a piece counts as one token."""
        return len(self.tokens) or int(bool(self.text or self.reasoning or self.tool_calls))


def piece_of(chunk: Chunk) -> AnswerPiece:
    """``chunk`` has at most one choice."""
    if not chunk.choices:
        return AnswerPiece(usage=chunk.usage, receipts=chunk.receipts or ())
    choice = chunk.choices[0]
    if isinstance(choice, CompletionChunkChoice):
        listed = _tokens(choice.logprobs) if choice.logprobs is not None else ()
        return AnswerPiece(choice.text, None, listed, choice.finish_reason, chunk.usage, stop_reason=choice.stop_reason)
    tokens = tuple(choice.logprobs.content or ()) if choice.logprobs is not None else ()
    delta = choice.delta
    return AnswerPiece(
        delta.content or "",
        delta.tool_calls or None,
        tokens,
        choice.finish_reason,
        chunk.usage,
        delta.reasoning_content or "",
        chunk.transcripts if isinstance(chunk, ChatCompletionChunk) else None,
        annotations=delta.annotations,
        stop_reason=choice.stop_reason,
    )


def _tokens(listed: CompletionLogprobs) -> tuple[TokenLogprob, ...]:
    tops = listed.top_logprobs or [None] * len(listed.tokens)
    return tuple(
        TokenLogprob(
            token=token,
            logprob=0.0 if logprob is None else logprob,
            top_logprobs=[TopLogprob(token=name, logprob=value) for name, value in (top or {}).items()],
        )
        for token, logprob, top in zip(listed.tokens, listed.token_logprobs, tops, strict=True)
    )


class Form:
    """Makes the client's chunks of one answer from pieces, with a route whenever it changes."""

    def __init__(self, model: str, request: AnswerRequest) -> None:
        kind: type[Chunk]
        if isinstance(request, ChatCompletionRequest):
            kind, self._begin = ChatCompletionChunk, [ChunkChoice(index=0, delta=Delta(role="assistant", content=""))]
            self._top = (request.top_logprobs or 0) if request.logprobs else None
        else:
            kind, self._begin, self._top = CompletionChunk, [], request.logprobs
        identity = f"{'chatcmpl' if self._begin else 'cmpl'}-{uuid4()}"
        self._chunk: Callable[..., Chunk] = partial(kind, id=identity, created=int(time.time()), model=model)

    def chunks(
        self,
        piece: AnswerPiece,
        start: int,
        route: Route | None,
        *,
        first: bool,
        transcripts: Sequence[SoundTranscript] | None = None,
    ) -> Iterator[Chunk]:
        """``start`` is the number of characters of the answer before this piece. ``route`` and ``transcripts`` are set
        if the first chunk must carry them. ``first``: nothing was shown yet.
        """
        carried = self._carried(route, transcripts)
        if first and self._begin:
            yield self._chunk(choices=self._begin, **carried)
            carried = {}
        yield self._chunk(choices=[self._choice(piece, start)], **carried)

    def last_chunks(
        self,
        finish_reason: str,
        usage: Usage,
        route: Route,
        *,
        first: bool,
        transcripts: Sequence[SoundTranscript] | None = None,
        receipts: Sequence[SignedReceipt] = (),
        parts: Sequence[AnswerPart] = (),
        stop_reason: str | None = None,
    ) -> Iterator[Chunk]:
        """First the finish_reason, then the usage with what the sides have signed."""
        if first and self._begin:
            yield self._chunk(choices=self._begin, **self._carried(route, transcripts))
        yield self._chunk(choices=[self._choice(AnswerPiece(), 0, finish_reason, stop_reason)], route=route)
        signed = {"receipts": list(receipts) or None, "parts": list(parts) or None}
        yield self._chunk(choices=[], usage=usage, route=route, **signed)

    def _carried(self, route: Route | None, transcripts: Sequence[SoundTranscript] | None) -> dict[str, Any]:
        """Only chunks of chats have transcripts."""
        return {"route": route, **({"transcripts": list(transcripts)} if transcripts and self._begin else {})}

    def _choice(
        self, piece: AnswerPiece, start: int, finish_reason: str | None = None, stop_reason: str | None = None
    ) -> ChunkChoice | CompletionChunkChoice:
        """The reason comes after the piece, when the router has decided that the answer ends there."""
        # The router may have requested more alternatives than the client.
        tokens = [] if self._top is None else [_trimmed(token, self._top) for token in piece.tokens]
        rest: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "stop_reason": stop_reason}
        if not self._begin:
            return CompletionChunkChoice(text=piece.text, logprobs=_listed(tokens, start) if tokens else None, **rest)
        is_other = piece.tool_calls or piece.reasoning or piece.annotations or finish_reason
        delta = Delta(
            content=None if is_other and not piece.text else piece.text,
            reasoning_content=piece.reasoning or None,
            tool_calls=piece.tool_calls,
            annotations=None if piece.annotations is None else list(piece.annotations),
        )
        return ChunkChoice(delta=delta, logprobs=ChatLogprobs(content=tokens) if tokens else None, **rest)


def _trimmed(token: TokenLogprob, top: int) -> TokenLogprob:
    return token.model_copy(update={"top_logprobs": token.top_logprobs[:top]})


def _listed(tokens: Sequence[TokenLogprob], start: int) -> CompletionLogprobs:
    offsets = [start + sum(len(token.token) for token in tokens[:index]) for index in range(len(tokens))]
    return CompletionLogprobs(
        tokens=[token.token for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[{top.token: top.logprob for top in token.top_logprobs} for token in tokens],
        text_offset=offsets,
    )
