"""One answer as text: token ids flow in from the engine, pieces of text flow out with the tokens that they are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from nearfar.compiler.text.stop_strings import StopAutomaton, StopStrings
from nearfar.compiler.text.tokenizer import TextStream, Tokenizer

from ..engine.request import Completion, FinishReason, GeneratedToken, PromptLogprobs, TokenRequest, TokenSource


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token with where its text starts and ends in the answer, in characters."""

    token: GeneratedToken
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """``tokens`` are those whose text is out with this piece."""

    text: str
    tokens: tuple[PlacedToken, ...]


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """``completion`` is None where a stop string ended the answer, so that the engine did not say what it cost."""

    finish_reason: FinishReason
    completion_tokens: int
    completion: Completion | None = None


async def answer_choice(
    source: TokenSource, tokenizer: Tokenizer, request: TokenRequest, stops: StopAutomaton
) -> AsyncGenerator[Piece | ChoiceEnd, None]:
    """Yield a piece for each token, an empty one while its text is held back, and last the end. Raises what the source raises."""
    choice = _Choice(TextStream(tokenizer), StopStrings(stops), request.min_tokens)
    async with aclosing(source.generate(request)) as tokens:
        async for news in tokens:
            if isinstance(news, PromptLogprobs):
                continue
            if isinstance(news, Completion):
                yield choice.finish()
                yield ChoiceEnd("stop" if choice.stopped else news.finish_reason, news.completion_tokens, news)
                return
            yield choice.feed(news)
            if choice.stopped:
                yield ChoiceEnd("stop", choice.count)
                return


class _Choice:
    def __init__(self, stream: TextStream, stops: StopStrings, min_tokens: int) -> None:
        self._stream = stream
        self._stops = stops
        self._min_tokens = min_tokens
        self._waiting: list[PlacedToken] = []
        self._decoded = 0
        self._released = 0
        self.count = 0

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def feed(self, token: GeneratedToken) -> Piece:
        self.count += 1
        text = self._stream.feed(token.token_id)
        start, self._decoded = self._decoded, self._decoded + len(text)
        self._waiting.append(PlacedToken(token, start, self._decoded))
        return self._piece(self._unstopped(text), last=self.stopped)

    def finish(self) -> Piece:
        text = self._unstopped(self._stream.finish())
        return self._piece(text + self._stops.finish(), last=True)

    def _unstopped(self, text: str) -> str:
        return self._stops.feed(text, may_stop=self.count > self._min_tokens)

    def _piece(self, text: str, *, last: bool) -> Piece:
        self._released += len(text)
        # Of the tokens around a stop string, those that have a character before it belong to the answer.
        kept = next(
            (
                index
                for index, token in enumerate(self._waiting)
                if (self.stopped and token.start >= self._released if last else token.end > self._released)
            ),
            len(self._waiting),
        )
        tokens, self._waiting = tuple(self._waiting[:kept]), self._waiting[kept:]
        return Piece(text, tokens)
