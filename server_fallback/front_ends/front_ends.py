"""The main process of a server with several front ends: it opens the models, and counts the usage of clients.

The first SIGTERM, SIGINT or SIGHUP lets the front ends finish their requests, and a second one does not wait.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence

from nearfar.compiler.runtime.audio.transcribe import Transcript

from ..api.app import limiter_of
from ..api.config import ApiConfig
from ..api.server import STUCK_SECONDS, end_process_after, loop_factory, prepare_process
from ..api.stored_responses import OwnResponses
from ..executors.encoder_executor import EncoderExecutor
from ..executors.hearing_transcriber import hearing_turns
from ..executors.local import LocalExecutor
from ..executors.model_table import ModelEntry
from ..executors.registry import Registry
from ..executors.speech_executor import SpeechExecutor
from ..executors.transcriber import TranscriberByName
from ..log_event import log_event
from .front_end_process import FrontEndProcess, Owners
from .messages import Publish, SharedModel, Transcribe

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_front_ends(
    registry: Registry,
    config: ApiConfig,
    listeners: Sequence[socket.socket],
    started: Callable[[Registry], Awaitable[None]],
) -> None:
    """Serve until a signal, with a front end for each listener. ``started`` runs beside them once they exist; an error
    that it raises ends the server and is raised again.
    """
    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(FrontEnds(registry, config, listeners).serve(started))


class FrontEnds:
    def __init__(self, registry: Registry, config: ApiConfig, listeners: Sequence[socket.socket]) -> None:
        self._registry, self._config, self._listeners = registry, config, listeners
        self._front_ends: list[FrontEndProcess] = []
        registry.publish = self._publish
        self._stop, self._hearing = asyncio.Event(), hearing_turns()
        self._signals = 0

    async def serve(self, started: Callable[[Registry], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            # Under nohup, SIGHUP stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
        limiter, owners = limiter_of(self._config), Owners()
        responses = OwnResponses(self._config.response_memory_bytes)
        metrics_folder = tempfile.mkdtemp(prefix="nearfar-metrics-")
        beside: asyncio.Task[None] | None = None
        try:
            self._front_ends += [
                FrontEndProcess(
                    listener,
                    self._config,
                    limiter,
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
        """Raises the errors of `TranscriberByName.transcribe`."""
        transcriber = TranscriberByName(message.model, self._registry, self._hearing)
        return await transcriber.transcribe(message.recording, message.request, message.call, heard)

    async def _publish(self) -> None:
        """Return when all front ends use the models of now."""
        await asyncio.gather(*(each.publish(self._latest()) for each in self._front_ends))


def shared_model(entry: ModelEntry) -> SharedModel:
    executor = entry.executor
    return SharedModel(
        name=entry.name,
        model=entry.model,
        created=entry.created,
        aliases=tuple(entry.aliases),
        adapters=dict(entry.adapters) if executor is not None else {},
        task=entry.task,
        answers_at_once=entry.answers_at_once,
        memory_bytes=entry.memory_bytes,
        share=executor.share if isinstance(executor, LocalExecutor | EncoderExecutor | SpeechExecutor) else None,
    )
