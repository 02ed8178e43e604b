"""AnswerPiece: the content of one chunk of a side's answer, in one form for chats and completions.

`forms` makes the client's chunks from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...schema.chat import ChatCompletionChunk, ToolCallDelta
from ...schema.common import TokenLogprob, TopLogprob, Usage
from ...schema.completions import CompletionChunk, CompletionChunkChoice, CompletionLogprobs


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """``tokens`` are the tokens whose text is emitted, if log-probabilities were requested.

    ``usage`` comes last, after ``finish_reason``.
    """

    text: str = ""
    tool_calls: list[ToolCallDelta] | None = None
    tokens: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    reasoning: str = ""

    @property
    def has_content(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls or self.tokens)

    @property
    def num_tokens(self) -> int:
        """If a server does not list its tokens, a piece counts as one token."""
        return len(self.tokens) or int(self.has_content)


def piece_of(chunk: ChatCompletionChunk | CompletionChunk) -> AnswerPiece:
    """``chunk`` has at most one choice."""
    if not chunk.choices:
        return AnswerPiece(usage=chunk.usage)
    choice = chunk.choices[0]
    if isinstance(choice, CompletionChunkChoice):
        listed = _tokens(choice.logprobs) if choice.logprobs is not None else ()
        return AnswerPiece(choice.text, None, listed, choice.finish_reason, chunk.usage)
    tokens = tuple(choice.logprobs.content or ()) if choice.logprobs is not None else ()
    delta = choice.delta
    return AnswerPiece(
        delta.content or "",
        delta.tool_calls or None,
        tokens,
        choice.finish_reason,
        chunk.usage,
        delta.reasoning_content or "",
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
