"""Turns the pieces of answers into OpenAI's chat chunks, and reads tool calls out of the text."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nearfar.compiler.bundle.entries import ToolFormatEntry

from ..engine.request import PromptLogprobs, TokenRequest
from ..schema.chat import ChatCompletionChunk, ChatLogprobs, ChunkChoice, Delta, ToolCallDelta
from ..schema.common import FinishReason, TokenLogprob, TopLogprob
from ..schema.common import PromptLogprobs as PromptLogprobsList
from ..schema.functions import FunctionCallDelta
from .answers import usage_of
from .choice import ChoiceEnd, Part, Piece, TokenSpan
from .output import Output
from .prompt_tokens import prompt_logprobs
from .token_bytes import KeptText
from .tool_call_stream import ArgumentsEvent, CallEvent, TextEvent, ToolCallEvent, ToolCallStream
from .vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How answers are streamed.

    ``calls`` is the format of tool calls, None if the answer has none. For ``call_begins`` see `AnswerFormat`, and for
    ``call_texts`` `text_parameters`. With ``one_call``, everything after the first call is left out. ``vocabulary`` is
    None unless log-probabilities are requested, for the answer (``lists_tokens``) or, with as many alternatives as
    ``prompt_logprobs``, for the prompt. ``lists_ids``: whether the prompt's token ids are requested.
    """

    model: str
    calls: ToolFormatEntry | None
    one_call: bool
    lists_tokens: bool
    vocabulary: Vocabulary | None = None
    call_begins: Sequence[str] | None = None
    call_texts: Mapping[str, frozenset[str]] | None = None
    prompt_logprobs: int | None = None
    lists_ids: bool = False


@dataclass(slots=True)
class _ChoiceState:
    """The output of one choice so far. ``tokens`` wait until it is known which part of them is content."""

    parser: ToolCallStream | None
    started: bool = False
    tokens: list[TokenSpan] = field(default_factory=list)
    kept: KeptText = field(default_factory=KeptText)
    end: ChoiceEnd | None = None


@dataclass(frozen=True, slots=True)
class _Head:
    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, *choices: ChunkChoice, **rest: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(id=self.id, created=self.created, model=self.model, choices=list(choices), **rest)


class ChatAnswer:
    """Implements `Answer`. All choices answer one prompt. The last chunk has the usage and no choices."""

    def __init__(self, requests: Sequence[TokenRequest], form: ChatForm, output: Output[ChatCompletionChunk]) -> None:
        self._requests, self._form, self._output = requests, form, output
        self._head = _Head(form.model)
        self._of_prompt = {"num_prompt_tokens": len(requests[0].prompt_ids)}
        self._states = [
            _ChoiceState(
                None
                if form.calls is None
                else ToolCallStream(form.calls, begins=form.call_begins, texts=form.call_texts)
            )
            for _ in requests
        ]

    def begin(self) -> None:
        """The ids of the prompt, unless they come with its log-probabilities."""
        if self._form.lists_ids and self._form.prompt_logprobs is None:
            self._send_prompt()

    def add(self, index: int, item: Part) -> None:
        state, form = self._states[index], self._form
        if isinstance(item, PromptLogprobs):
            assert form.vocabulary is not None
            assert form.prompt_logprobs is not None
            self._send_prompt(prompt_logprobs(form.vocabulary, item.tokens, form.prompt_logprobs))
        elif isinstance(item, Piece):
            plain = state.parser is None and form.vocabulary is None and not item.reasoning and not item.ids
            if state.started and plain:
                if item.text:
                    self._output.text(index, item.text, self._text_chunk)
                return
            events = [TextEvent(item.text)] if state.parser is None else state.parser.feed(item.text)
            tokens = _with_content(state, form, events, item.tokens)
            self._send(_choices(index, state, item.reasoning, events, tokens, form, item.ids))
        else:
            state.end = item
            events = state.parser.finish() if state.parser is not None else []
            tokens = _with_content(state, form, events, ())
            end = ChunkChoice(index=index, delta=Delta(), finish_reason=_finish_reason(item, state.parser))
            end.stop_reason = item.stop
            self._send([*_choices(index, state, "", events, tokens, form), end])

    def end(self) -> None:
        ends = [state.end for state in self._states if state.end is not None]
        usage = usage_of(self._requests, ends, len(self._requests))
        self._output.chunk(self._head.chunk(usage=usage))

    def _send_prompt(self, listed: PromptLogprobsList | None = None) -> None:
        """The first chunk, with what is reported of the prompt."""
        ids = list(self._requests[0].prompt_ids) if self._form.lists_ids else None
        first = _choices(0, self._states[0], "", (), (), self._form)
        self._output.chunk(self._head.chunk(*first, prompt_token_ids=ids, prompt_logprobs=listed, **self._of_prompt))

    def _text_chunk(self, index: int, text: str) -> ChatCompletionChunk:
        return self._head.chunk(ChunkChoice(index=index, delta=Delta(content=text)))

    def _send(self, choices: Sequence[ChunkChoice]) -> None:
        for choice in choices:
            is_first = choice.delta.role is not None
            self._output.chunk(self._head.chunk(choice, **self._of_prompt if is_first else {}))


def _choices(
    index: int,
    state: _ChoiceState,
    reasoning: str,
    events: Sequence[ToolCallEvent],
    tokens: Sequence[TokenSpan],
    form: ChatForm,
    ids: Sequence[int] = (),
) -> list[ChunkChoice]:
    deltas = [Delta(reasoning_content=reasoning)] if reasoning else []
    deltas += [_delta(event) for event in events if _is_emitted(event, form)]
    logprobs = None
    if form.vocabulary is not None and tokens:
        logprobs = ChatLogprobs(content=[_token_logprob(form.vocabulary, token) for token in tokens])
    if logprobs is not None or ids:
        deltas = deltas or [Delta(content="")]
    choices = [ChunkChoice(index=index, delta=delta) for delta in deltas]
    if choices:
        choices[0].logprobs, choices[0].token_ids = logprobs, list(ids) or None
    if not state.started:
        state.started = True
        choices.insert(0, ChunkChoice(index=index, delta=Delta(role="assistant", content="")))
    return choices


def _with_content(
    state: _ChoiceState, form: ChatForm, events: Sequence[ToolCallEvent], tokens: Sequence[TokenSpan]
) -> Sequence[TokenSpan]:
    """The tokens of which it is known whether they are part of a call, which is no content."""
    if state.parser is None or not form.lists_tokens:
        return tokens
    state.tokens += tokens
    state.kept.feed([token.content for token in tokens])
    texts = [event.text for event in events if isinstance(event, TextEvent)]
    parts = state.kept.take(texts, state.parser.undecided)
    decided, state.tokens = state.tokens[: len(parts)], state.tokens[len(parts) :]
    return [replace(token, content=part) for token, part in zip(decided, parts, strict=True)]


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
    """``bytes`` are the token's part of the content, so that those of all tokens join to it: nothing for a token of
    reasoning or of a call, and for text from a stop string on.
    """
    token = span.token
    top = [_top_logprob(vocabulary, other.token_id, other.logprob) for other in token.alternatives]
    chosen = _top_logprob(vocabulary, token.token_id, token.logprob or 0.0)
    return TokenLogprob(token=chosen.token, bytes=list(span.content), logprob=chosen.logprob, top_logprobs=top)


def _top_logprob(vocabulary: Vocabulary, token_id: int, logprob: float) -> TopLogprob:
    token_bytes = vocabulary.tokens[token_id]
    return TopLogprob(
        token=vocabulary.name(token_id), bytes=None if token_bytes is None else list(token_bytes), logprob=logprob
    )
