"""An answer: one request's tokens on their way from the engine's thread to the event loop of whoever asked."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

import numpy as np

from nearfar.compiler.runtime.batch import Output

from .adapters import Adapter
from .request import Completion, GeneratedToken, PromptLogprobs, TokenLogprob, TokenRequest
from .resolved_sampling import ResolvedSampling
from .sequence import Sequence
from .step import Event

# What is told of an answer: how likely its prompt is, its tokens, then how it ended, or why it could not.
News = PromptLogprobs | GeneratedToken | Completion | BaseException
# That of a token that can hardly come.
LEAST_LOGPROB = -30.0


class Answer:
    """Made on the event loop; ``id`` is its place in the order of arrival.

    ``put`` and ``next`` belong to the event loop, all else to the engine's thread.
    """

    def __init__(self, id: int, request: TokenRequest, sampling: ResolvedSampling) -> None:
        self.id, self.request, self.sampling = id, request, sampling
        self.loop = asyncio.get_running_loop()
        # The engine's thread makes it when the answer's turn comes.
        self.sequence: Sequence | None = None
        self.adapter: Adapter | None = None
        # All tokens of the answer so far.
        self.token_ids: list[int] = []
        # Of the prompt's tokens that are told of, as far as they are.
        self.prompt_logprobs: list[float] = []
        self.ended = False
        self._arrived = time.monotonic()
        self._started: float | None = None
        self._first_token: float | None = None
        self._news: deque[News] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Rows of it are handed to the device for the first time, or again."""
        if self._started is None:
            self._started = time.monotonic()

    def add(self, token_id: int) -> None:
        if self._first_token is None:
            self._first_token = time.monotonic()
        self.token_ids.append(token_id)

    @property
    def num_told(self) -> int:
        """How many of the prompt's tokens are told of: none is before the first."""
        return min(self.request.prompt_logprobs, len(self.request.prompt_ids) - 1)

    def completion(self) -> Completion:
        """How it ended, to be asked when its sequence has."""
        sequence, now = self.sequence, time.monotonic()
        assert sequence is not None
        assert sequence.finish_reason is not None
        return Completion(
            finish_reason=sequence.finish_reason,
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(self.token_ids),
            cached_tokens=sequence.cached_tokens,
            queue_seconds=(self._started or now) - self._arrived,
            time_to_first_token_seconds=(self._first_token or now) - self._arrived,
            total_seconds=now - self._arrived,
        )

    def put(self, news: News) -> None:
        self._news.append(news)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> PromptLogprobs | GeneratedToken | Completion:
        """The next of the news. Raises the error that the answer failed with."""
        while not self._news:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news = self._news.popleft()
        if isinstance(news, BaseException):
            raise news
        return news


class Outbox:
    """News of a step, handed over with one call an event loop, so that a step of many answers costs no more than one of few."""

    def __init__(self) -> None:
        self._parcels: dict[asyncio.AbstractEventLoop, list[tuple[Answer, News]]] = {}

    def add(self, answer: Answer, news: News) -> None:
        self._parcels.setdefault(answer.loop, []).append((answer, news))

    def send(self) -> list[Answer]:
        """Hand over all that was added; the answers whose event loop is closed, so that nobody waits for them."""
        lost: list[Answer] = []
        for loop, parcel in self._parcels.items():
            try:
                loop.call_soon_threadsafe(deliver, parcel)
            except RuntimeError:
                lost += [answer for answer, _ in parcel]
        self._parcels = {}
        return lost


def deliver(parcel: list[tuple[Answer, News]]) -> None:
    for answer, news in parcel:
        answer.put(news)


def token_of(event: Event, output: Output, logprobs: int | None) -> GeneratedToken:
    """A token with the log-probabilities that were asked for."""
    if logprobs is None:
        return GeneratedToken(event.token_id)
    alternatives: tuple[TokenLogprob, ...] = ()
    if logprobs > 0:
        pairs = zip(output.top_token_ids[event.sample].tolist(), output.top_logprobs[event.sample].tolist(), strict=True)
        # A small vocabulary has fewer than could be asked for.
        alternatives = tuple(TokenLogprob(token_id, logprob) for token_id, logprob in list(pairs)[:logprobs])
    return GeneratedToken(event.token_id, float(output.token_logprobs[event.sample]), alternatives)


def prompt_logprob_of(event: Event, output: Output, vocab_size: int) -> float:
    """The log-probability of a prompt's token in its place, by the alternatives of the row before it."""
    token_ids, logprobs = output.top_token_ids[event.sample], output.top_logprobs[event.sample]
    found = np.flatnonzero(token_ids == event.token_id)
    if len(found):
        return float(logprobs[found[0]])
    if output.next_token_ids[event.sample] == event.token_id:
        return float(output.token_logprobs[event.sample])
    left, others = 1 - float(np.exp(logprobs.astype(np.float64)).sum()), vocab_size - len(token_ids)
    return max(math.log(left / others), LEAST_LOGPROB) if left > 0 and others > 0 else LEAST_LOGPROB
