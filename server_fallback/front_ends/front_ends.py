"""The main process of a server with several front ends: it opens the models, and counts the usage of clients.

The first SIGTERM or SIGINT lets the front ends finish their requests, and a second one does not wait. SIGHUP reads the
configuration again, or is like SIGTERM for a server without a file to read.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import Unavailable

from ..api.config import ApiConfig
from ..api.limiter import Limiter
from ..api.log import set_level
from ..api.server import STUCK_SECONDS, end_process_after, loop_factory, prepare_process
from ..api.service import limits_of
from ..api.stored_responses import OwnResponses
from ..api.tls import tls_context
from ..executors.encoder_executor import EncoderExecutor
from ..executors.executor import Executor
from ..executors.local import LocalExecutor
from ..executors.local_share import LocalShare, SpeechShare
from ..executors.model_table import ModelEntry
from ..executors.registry import Registry
from ..executors.speech_executor import SpeechExecutor
from ..log_event import log_event
from ..processes.connection import Background
from .front_end_process import FrontEndProcess, Owners
from .messages import Configure, Leave, Publish, SharedModel, Transcribe

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Reload = Callable[[Callable[[ApiConfig], Awaitable[None]]], Coroutine[Any, Any, None]]


def run_front_ends(
    registry: Registry,
    config: ApiConfig,
    listeners: Sequence[socket.socket],
    started: Callable[[Registry], Awaitable[None]],
    reload: Reload | None = None,
) -> None:
    """Serve until a signal, with a front end for each listener. ``started`` runs beside them once they exist; an error
    that it raises ends the server and is raised again. ``reload`` runs on SIGHUP, with a function that configures all
    front ends; None: the signal ends the server. Raises RequestError for a wrong certificate.
    """
    prepare_process()
    # Each front end reads it itself.
    tls_context(config)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(FrontEnds(registry, config, listeners, reload).serve(started))


class FrontEnds:
    """Implements `Elsewhere`."""

    def __init__(
        self,
        registry: Registry,
        config: ApiConfig,
        listeners: Sequence[socket.socket],
        reload: Reload | None = None,
    ) -> None:
        self._registry, self._config, self._listeners, self._reload = registry, config, listeners, reload
        self._limiter, self._started, self._background = Limiter(*limits_of(config)), False, Background()
        self._front_ends: list[FrontEndProcess] = []
        registry.elsewhere = self
        self._stop = asyncio.Event()
        self._signals = 0

    async def serve(self, started: Callable[[Registry], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if number == signal.SIGHUP and self._reload is not None:
                loop.add_signal_handler(number, self._on_hangup, self._reload)
            # Under nohup, SIGHUP stays ignored.
            elif signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
        owners, responses = Owners(), OwnResponses(self._config.response_memory_bytes)
        metrics_folder = tempfile.mkdtemp(prefix="nearfar-metrics-")
        beside: asyncio.Task[None] | None = None
        try:
            self._front_ends += [
                FrontEndProcess(
                    listener,
                    self._configuration,
                    self._limiter,
                    owners,
                    responses,
                    metrics_folder,
                    self._latest,
                    self._registry.change,
                    self._transcribe,
                )
                for listener in self._listeners
            ]
            await asyncio.gather(*(each.open() for each in self._front_ends))
            beside = asyncio.ensure_future(self._beside(started))
            await self._stop.wait()
            if self._signals == 0:
                self._end_front_ends(signal.SIGTERM)
            await asyncio.gather(*(each.stopped() for each in self._front_ends))
            await self._registry.close(0.0)
            await beside
        finally:
            shutil.rmtree(metrics_folder, ignore_errors=True)

    async def _beside(self, started: Callable[[Registry], Awaitable[None]]) -> None:
        try:
            await started(self._registry)
        except BaseException:
            self._stop.set()
            raise
        self._started = True
        await self._send(self._configuration())

    def _on_hangup(self, reload: Reload) -> None:
        self._background.run(reload(self.configure))

    async def configure(self, config: ApiConfig) -> None:
        """Serve with other keys, limits, certificates and levels of the log from now on. Returns when all front ends
        do. Raises RequestError for certificates that cannot be read, and then changes nothing.
        """
        tls_context(config)
        self._config = config
        self._limiter.set(*limits_of(config))
        set_level(config.log_level)
        await self._send(self._configuration())

    def _configuration(self) -> Configure:
        return Configure(self._config, self._started)

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            log_event("draining", signal=signal.Signals(number).name, seconds=self._config.drain_seconds)
        end_process_after(STUCK_SECONDS + (self._config.drain_seconds if self._signals == 1 else 0.0))
        self._end_front_ends(signal.SIGTERM)
        self._stop.set()

    def _end_front_ends(self, number: int) -> None:
        for each in self._front_ends:
            each.stop(number)

    def _latest(self) -> Publish:
        return Publish(tuple(shared_model(entry) for entry in self._registry.entries()))

    async def _transcribe(self, message: Transcribe, heard: Callable[[str], None]) -> Transcript:
        """Raises the errors of `Transcribes.transcribe`, and Unavailable if the model was closed."""
        for entry in self._registry.opened():
            executor, share = entry.executor, _share(entry.executor)
            if isinstance(executor, SpeechExecutor) and share is not None and share.engine == message.engine:
                with entry.users.one_more():
                    return await executor.transcribe(message.recording, message.request, message.call, heard)
        raise Unavailable("the model that transcribes was closed; try again later")

    async def publish(self) -> None:
        """See `Elsewhere`."""
        await self._send(self._latest())

    async def unused(self, executor: Executor) -> None:
        """See `Elsewhere`."""
        share = _share(executor)
        if share is not None:
            await self._send(Leave(share.engine))

    async def _send(self, message: Publish | Configure | Leave) -> None:
        await asyncio.gather(*(each.call(message) for each in self._front_ends))


def shared_model(entry: ModelEntry) -> SharedModel:
    executor = entry.executor
    return SharedModel(
        name=entry.name,
        model=entry.model,
        created=entry.created,
        aliases=tuple(entry.aliases),
        adapters=dict(entry.adapters) if executor is not None or entry.asleep is not None else {},
        asleep=entry.asleep,
        task=entry.task,
        answers_at_once=entry.answers_at_once,
        memory_bytes=entry.memory_bytes,
        share=_share(executor),
    )


def _share(executor: Executor | None) -> LocalShare | SpeechShare | None:
    return executor.share if isinstance(executor, LocalExecutor | EncoderExecutor | SpeechExecutor) else None
