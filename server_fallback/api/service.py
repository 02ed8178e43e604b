"""Service: the state that all routes of one app share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Request

from nearfar.compiler.runtime.errors import Unavailable

from ..executors.executor import Executor, ExecutorState, LoadsOnUse, Models, UnknownModel
from ..executors.hearing_transcriber import hearing_turns
from ..schema.about import QUEUE_HEADER
from ..speech.speaker import Speaker
from ..text.fair_turns import FairTurns
from .config import ApiConfig
from .drain import Drain
from .errors import WriteError, openai_error
from .exchange import Exchange
from .kept_answers import KeptAnswers
from .limiter import Limits
from .metrics import Metrics
from .queue_waits import QueueWaits
from .stored_responses import StoredResponses
from .traces import Traces

Parsed = TypeVar("Parsed")
# Longer bodies are parsed on a thread, so that other requests run meanwhile.
INLINE_BYTES = 64 << 10


@dataclass(slots=True)
class Service:
    """``config`` may change while the server runs (`configure`), so nothing copies it. ``started``: what the server was
    started with has been loaded.

    ``responses`` are those of /v1/responses. ``error_forms``: how errors are written below an address; the first that
    matches counts, and others have OpenAI's form. ``speaker`` answers /v1/audio/speech.
    """

    models: Models
    config: ApiConfig
    limits: Limits
    metrics: Metrics
    queue_waits: QueueWaits
    drain: Drain
    traces: Traces | None
    kept: KeptAnswers
    responses: StoredResponses
    error_forms: Sequence[tuple[str, WriteError]] = ()
    speaker: Speaker | None = None
    parsing: FairTurns = field(default_factory=FairTurns)
    hearing: asyncio.Semaphore = field(default_factory=hearing_turns)
    # The transcriber, once it was ready.
    heard: set[str] = field(default_factory=set)
    started: bool = False

    def configure(self, config: ApiConfig) -> None:
        """Requests that are read from now on have the keys and limits of ``config``."""
        self.config = config
        self.limits.set(*limits_of(config))
        self.kept.keep_seconds = config.keep_seconds

    @property
    def loading(self) -> str | None:
        """The server's transcriber, which is loaded after other models, until it is ready for the first time."""
        name = self.config.transcriber or self.config.near_transcriber
        if name is None or name in self.heard:
            return None
        state = self.models.states().get(name)
        if state is None or not state.ready:
            return name
        self.heard.add(name)
        return None

    async def parsed(self, parse: Callable[[bytes], Parsed], body: bytes, client: str) -> Parsed:
        """The value of a body."""
        return await self.read(lambda: parse(body), len(body), client)

    async def read(self, work: Callable[[], Parsed], size: int, client: str) -> Parsed:
        """The result of work that parses ``size`` bytes. Long ones are parsed one at a time, and clients take turns: a
        parser holds the interpreter's lock, so several threads of them would keep all other requests waiting.
        """
        if size <= INLINE_BYTES:
            return work()
        async with self.parsing.turn(client):
            return await asyncio.to_thread(work)

    def root_of(self, name: str) -> str:
        """The name of the model that an alias or an adapter belongs to. Raises UnknownModel."""
        for card in self.models.cards():
            if card.id == name:
                return card.parent or card.root or card.id
        raise UnknownModel(f"the model {name[:100]!r} is not loaded", param="model")

    def loads_others(self) -> bool:
        """Whether there are models that their first request loads."""
        # Cards of models that are not loaded have no root.
        return isinstance(self.models, LoadsOnUse) and any(card.root is None for card in self.models.cards())

    def is_ready(self, name: str) -> bool:
        """Whether the model answers requests now. Raises UnknownModel."""
        state = self.models.states().get(self.root_of(name))
        return state is not None and state.ready and not self.drain.started

    def ended(self, exchange: Exchange, status: int, seconds: float) -> None:
        """Count a request that named a model. Other names are not counted: each would be a metric of its own."""
        model = exchange.log.get("model")
        if isinstance(model, str):
            with suppress(UnknownModel):
                self.models.answers_at_once(model)
                self.metrics.inference(model, status, seconds)

    async def executor(self, name: str, exchange: Exchange) -> Executor:
        """The executor for a name, which stays open until the exchange is over. Call it when the body has been read.
        Raises UnknownModel, what loading raises, and the errors of `Drain.run`.
        """
        # Once for each exchange: one that holds a model must not wait behind another that waits for its memory.
        if name not in exchange.using:
            # The connection keeps its last exchange, which must not keep the model.
            exchange.held.callback(exchange.using.clear)
            use = exchange.held.enter_async_context(self.models.using(name))
            # Others do not load it, so there is nothing to wait for.
            loads = isinstance(self.models, LoadsOnUse)
            exchange.using[name] = await (self.drain.run(use, exchange.receive, exchange.deadline) if loads else use)
        return exchange.using[name]

    async def answering(self, name: str) -> Executor | None:
        """The executor for a name that answers now; None for one that is not loaded, still loads or sleeps."""
        with suppress(UnknownModel, Unavailable):
            return await self.models.executor(name)
        return None

    def error_form(self, path: str) -> WriteError:
        return next((form for begin, form in self.error_forms if f"{path}/".startswith(f"{begin}/")), openai_error)

    def report_queue(self, states: Mapping[str, ExecutorState], exchange: Exchange) -> None:
        """Report the queue in a header of the answer, if the models' executors report how long answers wait."""
        wait_ms = self.queue_waits.wait_ms(states)
        if wait_ms is not None:
            exchange.answer_headers[QUEUE_HEADER] = str(wait_ms)


def limits_of(config: ApiConfig) -> tuple[int, int, float]:
    """The arguments of `Limiter`."""
    return config.max_concurrent_requests, config.body_memory_bytes, config.client_share


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
