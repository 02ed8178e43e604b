"""Turns the pieces of answers into OpenAI's chat chunks, and reads tool calls out of the text."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from nearfar.compiler.bundle.entries import ToolFormatEntry

from ..engine.request import TokenRequest
from ..schema.chat import ChatCompletionChunk, ChatLogprobs, ChunkChoice, Delta, FunctionCallDelta, ToolCallDelta
from ..schema.common import FinishReason, TokenLogprob, TopLogprob, Usage
from .answers import usage_of
from .choice import ChoiceEnd, Piece, TokenSpan
from .tool_call_stream import ArgumentsEvent, CallEvent, TextEvent, ToolCallEvent, ToolCallStream
from .vocabulary import Vocabulary
from .writer import Writer, Written


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How answers are streamed.

    ``calls`` is the format of tool calls, None if the answer has none. For ``call_begins`` see `AnswerFormat`, and for
    ``call_texts`` `text_parameters`. With ``one_call``, everything after the first call is left out. ``vocabulary`` is
    None unless log-probabilities are requested.
    """

    model: str
    calls: ToolFormatEntry | None
    one_call: bool
    vocabulary: Vocabulary | None
    call_begins: Sequence[str] | None = None
    call_texts: Mapping[str, frozenset[str]] | None = None


@dataclass(slots=True)
class _ChoiceState:
    """The output of one choice so far."""

    parser: ToolCallStream | None
    started: bool = False
    end: ChoiceEnd | None = None


@dataclass(frozen=True, slots=True)
class _Head:
    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, *choices: ChunkChoice, usage: Usage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self.id, created=self.created, model=self.model, choices=list(choices), usage=usage
        )


class ChatAnswer(Generic[Written]):
    """Implements `Answer`. All choices answer one prompt. The last chunk has the usage and no choices."""

    def __init__(
        self, requests: Sequence[TokenRequest], form: ChatForm, writer: Writer[ChatCompletionChunk, Written]
    ) -> None:
        self._requests, self._form, self._writer = requests, form, writer
        self._head = _Head(form.model)
        self._states = [
            _ChoiceState(
                None
                if form.calls is None
                else ToolCallStream(form.calls, begins=form.call_begins, texts=form.call_texts)
            )
            for _ in requests
        ]

    def begin(self) -> Sequence[Written]:
        return ()

    def add(self, index: int, item: Piece | ChoiceEnd) -> Sequence[Written]:
        state, form = self._states[index], self._form
        if isinstance(item, Piece):
            if state.started and state.parser is None and form.vocabulary is None and not item.reasoning:
                return (self._writer.text(index, item.text, self._text_chunk),) if item.text else ()
            events = [TextEvent(item.text)] if state.parser is None else state.parser.feed(item.text)
            return self._written(_choices(index, state, item.reasoning, events, item.tokens, form))
        state.end = item
        events = state.parser.finish() if state.parser is not None else []
        end = ChunkChoice(index=index, delta=Delta(), finish_reason=_finish_reason(item, state.parser))
        return self._written([*_choices(index, state, "", events, (), form), end])

    def end(self) -> Written:
        ends = [state.end for state in self._states if state.end is not None]
        usage = usage_of(self._requests, ends, len(self._requests))
        return self._writer.chunk(self._head.chunk(usage=usage))

    def _text_chunk(self, index: int, text: str) -> ChatCompletionChunk:
        return self._head.chunk(ChunkChoice(index=index, delta=Delta(content=text)))

    def _written(self, choices: Sequence[ChunkChoice]) -> Sequence[Written]:
        return [self._writer.chunk(self._head.chunk(choice)) for choice in choices]


def _choices(
    index: int,
    state: _ChoiceState,
    reasoning: str,
    events: Sequence[ToolCallEvent],
    tokens: Sequence[TokenSpan],
    form: ChatForm,
) -> list[ChunkChoice]:
    deltas = [Delta(reasoning_content=reasoning)] if reasoning else []
    deltas += [_delta(event) for event in events if _is_emitted(event, form)]
    logprobs = None
    if form.vocabulary is not None and tokens:
        logprobs = ChatLogprobs(content=[_token_logprob(form.vocabulary, token) for token in tokens])
        deltas = deltas or [Delta(content="")]
    choices = [
        ChunkChoice(index=index, delta=delta, logprobs=None if position else logprobs)
        for position, delta in enumerate(deltas)
    ]
    if not state.started:
        state.started = True
        choices.insert(0, ChunkChoice(index=index, delta=Delta(role="assistant", content="")))
    return choices


def _finish_reason(end: ChoiceEnd, parser: ToolCallStream | None) -> FinishReason:
    """An answer that ``max_tokens`` ends right after a complete call is not cut off."""
    called = parser is not None and (parser.calls > 0 if end.finish_reason == "stop" else parser.complete)
    return "tool_calls" if called else end.finish_reason


def _is_emitted(event: ToolCallEvent, form: ChatForm) -> bool:
    if isinstance(event, TextEvent):
        return event.text != ""
    return not form.one_call or event.index == 0


def _delta(event: ToolCallEvent) -> Delta:
    match event:
        case TextEvent(text):
            return Delta(content=text)
        case CallEvent(index, call_id, name):
            function = FunctionCallDelta(name=name, arguments="")
            return Delta(tool_calls=[ToolCallDelta(index=index, id=call_id, type="function", function=function)])
        case ArgumentsEvent(index, text):
            return Delta(tool_calls=[ToolCallDelta(index=index, function=FunctionCallDelta(arguments=text))])


def _token_logprob(vocabulary: Vocabulary, span: TokenSpan) -> TokenLogprob:
    token = span.token
    top = [_top_logprob(vocabulary, other.token_id, other.logprob) for other in token.alternatives]
    chosen = _top_logprob(vocabulary, token.token_id, token.logprob or 0.0)
    return TokenLogprob(token=chosen.token, bytes=chosen.bytes, logprob=chosen.logprob, top_logprobs=top)


def _top_logprob(vocabulary: Vocabulary, token_id: int, logprob: float) -> TopLogprob:
    token_bytes = vocabulary.tokens[token_id]
    return TopLogprob(
        token=vocabulary.name(token_id), bytes=None if token_bytes is None else list(token_bytes), logprob=logprob
    )
