"""Turns the token ids of one answer into pieces of text, each with its tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from nearfar.compiler.runtime.text.reasoning import Parts, Reasoning, ReasoningParser, State
from nearfar.compiler.runtime.text.stop_strings import StopAutomaton, StopStrings
from nearfar.compiler.runtime.text.text_stream import TextStream
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from ..engine.request import (
    AnswerEnd,
    FinishReason,
    GeneratedToken,
    PromptLogprobs,
    TokenRequest,
    TokenSource,
    batches_of,
    items_of,
)
from .output import Output
from .token_bytes import cut_parts, split_text
from .vocabulary import Vocabulary

# How many of the prompt's last tokens are observed.
OBSERVED = 32


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A token, and the offset at which its text starts in the answer, in characters. ``content`` is its part of the
    pieces' texts.
    """

    token: GeneratedToken
    start: int
    content: bytes = b""


class Piece(NamedTuple):
    """``reasoning`` comes before ``text``. ``tokens`` are those whose text ends in this piece or its reasoning, if
    log-probabilities were requested; ``ids`` are all tokens since the last piece, if their ids were.
    """

    text: str
    tokens: tuple[TokenSpan, ...]
    reasoning: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerText:
    """How the tokens of an answer become text.

    Stop strings end the content only. ``reasoning`` is the model's form of reasoning, and ``state`` is the state in
    which the answer begins. ``vocabulary`` is needed for tokens with log-probabilities, and ``lists_end`` adds the
    token that ended the answer to them. ``lists_ids``: pieces have the ids of their tokens. ``silent_stops`` are those
    of the stop strings that are not reported, because they are not the request's.
    """

    stops: StopAutomaton
    include_stop: bool = False
    skip_special_tokens: bool = True
    reasoning: Reasoning | None = None
    state: State = "content"
    vocabulary: Vocabulary | None = None
    lists_end: bool = False
    lists_ids: bool = False
    silent_stops: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of an answer.

    ``completion`` is None if a stop string ended the answer, because the engine then reports no usage.
    ``reasoning_tokens`` counts the tokens up to the end of the reasoning, with the markers; it is None for a model that
    does not reason. ``stop`` is the stop string that ended the answer.
    """

    finish_reason: FinishReason
    completion_tokens: int
    completion: AnswerEnd | None = None
    reasoning_tokens: int | None = None
    stop: str | None = None


# What a choice sends.
Part = PromptLogprobs | Piece | ChoiceEnd


class Observer(Protocol):
    """Callables that are called with the seconds until the device received an answer's first token, with each token's
    id, and before that with the log-probabilities of the prompt's last tokens, at most `OBSERVED`; or None.
    """

    @property
    def observe_queue(self) -> Callable[[float], None] | None: ...

    @property
    def observe_token(self) -> Callable[[int], None] | None: ...

    @property
    def observe_prompt_logprobs(self) -> Callable[[Sequence[float]], None] | None: ...


async def write_choice(
    source: TokenSource,
    tokenizer: Tokenizer,
    request: TokenRequest,
    form: AnswerText,
    observer: Observer,
    send: Callable[[Part], None],
    output: Output[Any],
) -> None:
    """Send the prompt's log-probabilities if the request wants them, a piece for each token that arrives while the
    output has room, or for all that have arrived when it has, and finally the end. A piece is empty while its text is
    held back.

    A request for zero tokens is answered without the source, unless it wants log-probabilities of the prompt. Raises
    the errors of the source.
    """
    choice = _Choice(tokenizer, form, request)
    observe_token, observe_prompt = observer.observe_token, observer.observe_prompt_logprobs
    lists_prompt = request.prompt_logprobs > 0
    # The piece of a token that ended the answer while this task waited.
    last: list[Piece] = []

    def handle(token: GeneratedToken) -> bool:
        if not output.has_room:
            return False
        if observe_token is not None:
            observe_token(token.token_id)
        piece = choice.feed(token)
        if choice.may_stop and choice.stopped:
            last.append(piece)
            return False
        send(piece)
        return True

    if request.max_tokens == 0:
        batches = only_prompt(source, request)
    else:
        if observe_prompt is not None:
            request = replace(request, prompt_logprobs=max(request.prompt_logprobs, OBSERVED))
        batches = batches_of(source, request, handle)
    async with aclosing(batches):
        async for batch in batches:
            pieces, end = list[Piece](), None
            for item in batch:
                if isinstance(item, PromptLogprobs):
                    if observe_prompt is not None:
                        observe_prompt(item.values[-OBSERVED:])
                    if lists_prompt:
                        send(item)
                    continue
                if isinstance(item, AnswerEnd):
                    if observer.observe_queue is not None:
                        observer.observe_queue(item.queue_seconds)
                    pieces.append(choice.finish(item.end_token))
                    reason = "stop" if choice.stopped else item.finish_reason
                    end = ChoiceEnd(reason, item.completion_tokens, item, choice.reasoning_tokens, choice.stop)
                    break
                if last:
                    pieces.append(last.pop())
                else:
                    if observe_token is not None:
                        observe_token(item.token_id)
                    pieces.append(choice.feed(item))
                if choice.stopped:
                    end = ChoiceEnd("stop", choice.count, None, choice.reasoning_tokens, choice.stop)
                    break
            for piece in pieces if len(pieces) == 1 or observe_token is not None else joined(pieces):
                send(piece)
            if end is not None:
                send(end)
            await output.room()
            if end is not None:
                return


async def only_prompt(
    source: TokenSource, request: TokenRequest
) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
    """The prompt's log-probabilities, and an answer without tokens: the engine's own has at least one."""
    end = AnswerEnd("length", len(request.prompt_ids), 0, 0, 0.0, 0.0, 0.0)
    if request.prompt_logprobs > 0:
        prompt = replace(request, max_tokens=1, min_tokens=0, constraint=None)
        async with aclosing(items_of(batches_of(source, prompt))) as items:
            async for item in items:
                if isinstance(item, PromptLogprobs):
                    yield [item]
                elif isinstance(item, AnswerEnd):
                    end = replace(item, finish_reason="length", completion_tokens=0, end_token=None)
    yield [end]


def joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same text in as few pieces as possible. Reasoning after text begins a new piece."""
    waiting: list[Piece] = []
    for piece in pieces:
        if piece.reasoning and any(each.text for each in waiting):
            yield join(waiting)
            waiting = []
        waiting.append(piece)
    if waiting:
        yield join(waiting)


def join(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        "".join(piece.reasoning for piece in pieces),
        tuple(token_id for piece in pieces for token_id in piece.ids),
    )


@dataclass(slots=True)
class _Span:
    """A token whose text starts at ``start`` of the decoded text. A run of tokens that write the same characters has
    one ``text``, None until they are complete; the token wrote the part ``index`` of ``parts``.
    """

    token: GeneratedToken
    start: int
    text: str | None = None
    parts: list[bytes] = field(default_factory=list)
    index: int = 0

    def content(self, start: int, end: int) -> bytes:
        """What the characters from ``start`` to ``end`` of the decoded text have of it."""
        if self.text is None:
            return b""
        return cut_parts(self.text, self.parts, start - self.start, end - self.start)[self.index]


class _Choice:
    def __init__(self, tokenizer: Tokenizer, form: AnswerText, request: TokenRequest) -> None:
        self._form = form
        self._stream = TextStream(tokenizer, form.skip_special_tokens)
        self._stops = StopStrings(form.stops, include=form.include_stop)
        # Whether there are stop strings.
        self.may_stop = self._stops.any
        self._min_tokens = request.min_tokens
        reasoning = self._reasoning = form.reasoning
        self._is_plain = reasoning is None and form.state == "content"
        self._parser = ReasoningParser(form.state, "" if reasoning is None else reasoning.dialect.label)
        self._pending: list[_Span] = []
        self._decoded = 0
        self._released = 0
        # Where the content starts in the decoded text.
        self._content_start: int | None = None
        self.count = 0
        self.reasoning_tokens = None if reasoning is None else 0

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    @property
    def stop(self) -> str | None:
        return None if self._stops.found in self._form.silent_stops else self._stops.found

    def feed(self, token: GeneratedToken) -> Piece:
        self.count += 1
        text = self._stream.feed(token.token_id)
        ids = (token.token_id,) if self._form.lists_ids else ()
        if self._form.vocabulary is None:
            if self._is_plain:
                return Piece(self._unstopped(text) if self.may_stop else text, (), "", ids)
            parts = self._parts(token.token_id, text)
            return Piece(self._unstopped(parts.content), (), parts.reasoning, ids)
        self._pending.append(_Span(token, self._decoded))
        self._decode(text)
        held = len(self._parser.held)
        parts = self._parts(token.token_id, text)
        content = self._unstopped(parts.content)
        # Characters that are neither held back nor content: reasoning, markers and the space around them.
        self._released += held + len(text) - len(self._parser.held) - len(parts.content)
        return self._piece(parts.reasoning, content, ids, last=self.stopped)

    def finish(self, end_token: GeneratedToken | None) -> Piece:
        """``end_token`` ended the answer. Its text is part of it only if stops are."""
        end = "" if end_token is None or not self._form.include_stop else self._stream.feed(end_token.token_id)
        text = end + self._stream.finish()
        self._decode(text)
        last, rest = self._parser.feed(text), self._parser.finish()
        content = self._unstopped(last.content + rest.content) + self._stops.finish()
        ids = (end_token.token_id,) if end_token is not None and self._form.lists_ids else ()
        piece = self._piece(last.reasoning, content, ids, last=True)
        if end_token is None or not self._form.lists_end:
            return piece
        return piece._replace(tokens=(*piece.tokens, TokenSpan(end_token, self._decoded)))

    def _decode(self, text: str) -> None:
        """The pending tokens without a text have this one, if it is not empty."""
        self._decoded += len(text)
        if not text or self._form.vocabulary is None:
            return
        run = [each for each in self._pending if each.text is None]
        own = [self._form.vocabulary.written(each.token.token_id, self._form.skip_special_tokens) for each in run]
        parts = split_text(text, own)
        for index, each in enumerate(run):
            each.text, each.parts, each.index = text, parts, index

    def _parts(self, token_id: int, text: str) -> Parts:
        if self._reasoning is None:
            return self._parser.feed(text)
        return self._parsed(token_id, text, self._reasoning)

    def _parsed(self, token_id: int, text: str, reasoning: Reasoning) -> Parts:
        assert self.reasoning_tokens is not None
        parser = self._parser
        before = parser.state
        parts = parser.feed_token(token_id, text, reasoning)
        self.reasoning_tokens += "reasoning" in (before, parser.state)
        return parts

    def _unstopped(self, text: str) -> str:
        return self._stops.feed(text, may_stop=self.count > self._min_tokens)

    def _piece(self, reasoning: str, text: str, ids: tuple[int, ...], *, last: bool) -> Piece:
        if text and self._content_start is None:
            self._content_start = self._released
        self._released += len(text)
        first, end = self._released if self._content_start is None else self._content_start, self._released
        # A token with at least one character before a stop string belongs to the answer.
        kept = next((index for index, each in enumerate(self._pending) if self._ends_before(each, last)), None)
        spans, self._pending = self._pending[:kept], [] if kept is None else self._pending[kept:]
        tokens = tuple(TokenSpan(each.token, each.start, each.content(first, end)) for each in spans)
        return Piece(text, tokens, reasoning, ids)

    def _ends_before(self, span: _Span, last: bool) -> bool:
        """Whether the tokens of this piece, which may be the last one, end before a token."""
        if last:
            return self.stopped and span.start >= self._released
        return span.text is None or span.start + len(span.text) > self._released
