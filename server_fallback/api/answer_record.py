"""AnswerRecord: the figures of one answer, for the metrics and the request's line in the log."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from ..schema.chat import ChatCompletionChunk
from ..schema.common import Usage
from ..schema.completions import CompletionChunk
from ..schema.route import Route
from .exchange import Exchange
from .latencies import Latencies

if TYPE_CHECKING:
    from .metrics import Metrics

# The side that answers, if a model is a pair of sides.
ROUTE_HEADER = "x-nearfar-route"


class AnswerRecord:
    """A context in which the answer is sent; its end, with or without an error, is the answer's.

    Chunks that are sent together count as one chunk for the time between chunks. ``prompt_tokens`` is 0 until they are
    known.
    """

    def __init__(self, metrics: Metrics, model: str, exchange: Exchange) -> None:
        self._metrics, self._model, self._exchange = metrics, model, exchange
        self._last_at: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        self._next_token: Latencies | None = None
        self._route: Route | None = None
        # What is known of an answer that is broken off, which reports no usage.
        self.prompt_tokens = self._num_texts = 0
        self._is_counted = False

    def chunk(self, chunk: ChatCompletionChunk | CompletionChunk) -> None:
        """A chunk was sent."""
        self.routed(chunk.route)
        self.sent(*contents_of(chunk), chunk.usage)

    def routed(self, route: Route | None) -> None:
        """The route that a chunk reports, if it does."""
        if route is None:
            return
        metrics, exchange, before, self._route = self._metrics, self._exchange, self._route, route
        exchange.answer_headers[ROUTE_HEADER] = route.side
        exchange.log.update(side=route.side, route_reason=route.reason)
        if before is None:
            metrics.routes.labels(route.side, route.reason).inc()
        elif before.side != route.side:
            metrics.switches.labels(before.side, route.side, route.reason).inc()

    def sent(self, texts: Collection[int], ends: Mapping[int, str], usage: Usage | None) -> float:
        """``texts`` are the choices with a text or a part of a call, ``ends`` the finish reasons of those that end.
        Returns the time, of `time.monotonic`.
        """
        metrics, model, exchange = self._metrics, self._model, self._exchange
        now = time.monotonic()
        self._num_texts += len(texts)
        if ends:
            self._reasons.update(ends)
        for index in {*texts, *ends} if ends else texts:
            last_at = self._last_at.get(index)
            if last_at is not None:
                # A chunk with only the finish reason has no token.
                if index in texts:
                    if self._next_token is None:
                        self._next_token = metrics.next_token(model)
                    self._next_token.add(now - last_at)
            elif not self._last_at:
                metrics.first_token.labels(model).observe(now - exchange.arrived)
                exchange.log["first_token_seconds"] = round(now - exchange.arrived, 4)
            self._last_at[index] = now
        if usage is not None:
            metrics.count(model, usage.prompt_tokens, usage.completion_tokens, exchange)
            self._is_counted = True
        return now

    def __enter__(self) -> AnswerRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        metrics, model, exchange = self._metrics, self._model, self._exchange
        reasons = self._reasons
        if not self._is_counted and exchange.admission is not None:
            # A text has at least one token.
            exchange.admission.tokens(self.prompt_tokens + self._num_texts)
        if error is None:
            metrics.latency.labels(model).observe(time.monotonic() - exchange.arrived)
        elif isinstance(error, Exception):
            reasons = reasons or {0: "error"}
        for reason in reasons.values() if reasons else ("abort",):
            metrics.success.labels(model, reason).inc()
        exchange.log["finish_reason"] = ",".join(sorted(set(reasons.values()))) or "abort"


def contents_of(chunk: ChatCompletionChunk | CompletionChunk) -> tuple[frozenset[int], dict[int, str]]:
    """The choices of a chunk that have a text or a part of a call, and the finish reasons of those that end."""
    texts = frozenset(choice.index for choice in chunk.choices if choice.has_text)
    return texts, {choice.index: choice.finish_reason for choice in chunk.choices if choice.finish_reason is not None}
