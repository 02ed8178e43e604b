"""Said: what one chunk of a side's answer says, whichever route it came by. Chunks flow in; `forms` makes the client's chunks of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...schema.chat import ChatCompletionChunk, ToolCallDelta
from ...schema.common import TokenLogprob, TopLogprob, Usage
from ...schema.completions import CompletionChunk, CompletionLogprobs


@dataclass(frozen=True, slots=True)
class Said:
    """``tokens`` are those whose text is out, where log-probabilities were asked for. ``usage`` comes last, ``finish_reason`` before it."""

    text: str = ""
    tool_calls: list[ToolCallDelta] | None = None
    tokens: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    reasoning: str = ""

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls or self.tokens)

    @property
    def num_tokens(self) -> int:
        """Of a server that does not list its tokens, a piece counts as one."""
        return len(self.tokens) or int(self.says_something)


def said_in_chat(chunk: ChatCompletionChunk) -> Said:
    """Of a chunk of one choice."""
    if not chunk.choices:
        return Said(usage=chunk.usage)
    choice = chunk.choices[0]
    tokens = tuple(choice.logprobs.content or ()) if choice.logprobs is not None else ()
    delta = choice.delta
    return Said(
        delta.content or "",
        delta.tool_calls or None,
        tokens,
        choice.finish_reason,
        chunk.usage,
        delta.reasoning_content or "",
    )


def said_in_completion(chunk: CompletionChunk) -> Said:
    if not chunk.choices:
        return Said(usage=chunk.usage)
    choice = chunk.choices[0]
    tokens = _tokens(choice.logprobs) if choice.logprobs is not None else ()
    return Said(choice.text, None, tokens, choice.finish_reason, chunk.usage)


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
