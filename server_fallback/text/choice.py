"""Turns the token ids of one answer into pieces of text, each with its tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from nearfar.compiler.text.stop_strings import StopAutomaton, StopStrings
from nearfar.compiler.text.tokenizer import TextStream, Tokenizer

from ..engine.request import (
    Completion,
    FinishReason,
    GeneratedToken,
    PromptLogprobs,
    TokenRequest,
    TokenSource,
    batches_of,
)
from .reasoning import Parts, Reasoning, ReasoningParser, State
from .writer import Sink


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A token, and the offsets at which its text starts and ends in the answer, in characters."""

    token: GeneratedToken
    start: int
    end: int


class Piece(NamedTuple):
    """``reasoning`` comes before ``text``. ``tokens`` are those whose text ends in this piece or its reasoning, if
    log-probabilities were requested.
    """

    text: str
    tokens: tuple[TokenSpan, ...]
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of an answer.

    ``completion`` is None if a stop string ended the answer, because the engine then reports no usage.
    ``reasoning_tokens`` counts the tokens up to the end of the reasoning, with the markers; it is None for a model that
    does not reason.
    """

    finish_reason: FinishReason
    completion_tokens: int
    completion: Completion | None = None
    reasoning_tokens: int | None = None


async def answer_choice(
    source: TokenSource,
    tokenizer: Tokenizer,
    request: TokenRequest,
    stops: StopAutomaton,
    reasoning: Reasoning | None = None,
    state: State = "content",
    sink: Sink[Piece] | None = None,
) -> AsyncGenerator[Piece | ChoiceEnd, None]:
    """Yield a piece for each batch of tokens, which is empty while its text is held back, and finally the end.

    Stop strings end the content only. ``reasoning`` is the model's form of reasoning, and ``state`` is the state in
    which the answer begins. ``sink`` receives the pieces of tokens that arrive while it is ready, and these are not
    yielded. Raises the errors of the source.
    """
    choice = _Choice(TextStream(tokenizer), StopStrings(stops), request, reasoning, state)
    # The piece of a token that ended the answer outside of this generator.
    last: list[Piece] = []

    def handle(token: GeneratedToken) -> bool:
        if sink is None or not sink.is_ready:
            return False
        piece = choice.feed(token)
        if choice.may_stop and choice.stopped:
            last.append(piece)
            return False
        sink.send(piece)
        return True

    async with aclosing(batches_of(source, request, None if sink is None else handle)) as batches:
        async for batch in batches:
            pieces, end = list[Piece](), None
            for item in batch:
                if isinstance(item, PromptLogprobs):
                    continue
                if isinstance(item, Completion):
                    pieces.append(choice.finish())
                    reason = "stop" if choice.stopped else item.finish_reason
                    end = ChoiceEnd(reason, item.completion_tokens, item, choice.reasoning_tokens)
                    break
                pieces.append(last.pop() if last else choice.feed(item))
                if choice.stopped:
                    end = ChoiceEnd("stop", choice.count, None, choice.reasoning_tokens)
                    break
            for piece in pieces if len(pieces) == 1 else joined(pieces):
                yield piece
            if end is not None:
                yield end
                return


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
    )


class _Choice:
    def __init__(
        self, stream: TextStream, stops: StopStrings, request: TokenRequest, reasoning: Reasoning | None, state: State
    ) -> None:
        self._stream = stream
        self._stops = stops
        # Whether there are stop strings.
        self.may_stop = stops.any
        self._min_tokens = request.min_tokens
        self._lists_tokens = request.logprobs is not None
        self._reasoning = reasoning
        self._is_plain = reasoning is None and state == "content"
        self._parser = ReasoningParser(state, "" if reasoning is None else reasoning.dialect.label)
        self._pending: list[TokenSpan] = []
        self._decoded = 0
        self._released = 0
        self.count = 0
        self.reasoning_tokens = None if reasoning is None else 0

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def feed(self, token: GeneratedToken) -> Piece:
        self.count += 1
        text = self._stream.feed(token.token_id)
        if not self._lists_tokens:
            if self._is_plain:
                return Piece(self._unstopped(text) if self.may_stop else text, ())
            parts = self._parts(token.token_id, text)
            return Piece(self._unstopped(parts.content), (), parts.reasoning)
        start, self._decoded = self._decoded, self._decoded + len(text)
        self._pending.append(TokenSpan(token, start, self._decoded))
        held = len(self._parser.held)
        parts = self._parts(token.token_id, text)
        content = self._unstopped(parts.content)
        # Characters that are neither held back nor content: reasoning, markers and the space around them.
        self._released += held + len(text) - len(self._parser.held) - len(parts.content)
        return self._piece(parts.reasoning, content, last=self.stopped)

    def finish(self) -> Piece:
        last, rest = self._parser.feed(self._stream.finish()), self._parser.finish()
        content = self._unstopped(last.content + rest.content) + self._stops.finish()
        return self._piece(last.reasoning, content, last=True)

    def _parts(self, token_id: int, text: str) -> Parts:
        if self._reasoning is None:
            return self._parser.feed(text)
        return self._parsed(token_id, text, self._reasoning)

    def _parsed(self, token_id: int, text: str, reasoning: Reasoning) -> Parts:
        assert self.reasoning_tokens is not None
        dialect, parser = reasoning.dialect, self._parser
        if token_id == reasoning.close_id and parser.state == "reasoning":
            self.reasoning_tokens += 1
            # The decoder writes the marker unless it is a special token.
            parts = parser.feed(text.removesuffix(dialect.close))
            parser.close()
            return parts
        if token_id == reasoning.open_id and parser.state == "start":
            parts = parser.feed(text.removesuffix(dialect.open))
            parser.open()
        else:
            parts = parser.feed(text)
        self.reasoning_tokens += parser.state == "reasoning"
        return parts

    def _unstopped(self, text: str) -> str:
        return self._stops.feed(text, may_stop=self.count > self._min_tokens)

    def _piece(self, reasoning: str, text: str, *, last: bool) -> Piece:
        self._released += len(text)
        # A token with at least one character before a stop string belongs to the answer.
        kept = next(
            (
                index
                for index, token in enumerate(self._pending)
                if (self.stopped and token.start >= self._released if last else token.end > self._released)
            ),
            len(self._pending),
        )
        tokens, self._pending = tuple(self._pending[:kept]), self._pending[kept:]
        return Piece(text, tokens, reasoning)
