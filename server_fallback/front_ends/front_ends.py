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

from ..api.app import limiter_of
from ..api.config import ApiConfig
from ..api.server import STUCK_SECONDS, end_process_after, loop_factory, prepare_process
from ..executors.registry import Registry
from ..log_event import log_event
from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, UnloadAdapterRequest, UnloadRequest
from .front_end_process import FrontEndProcess
from .messages import Change, Publish
from .published_models import PublishedModels

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_front_ends(
    registry: Registry,
    config: ApiConfig,
    listeners: Sequence[socket.socket],
    started: Callable[[PublishedModels], Awaitable[None]],
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
        self._models = PublishedModels(registry, self._publish)
        self._stop = asyncio.Event()
        self._signals = 0

    async def serve(self, started: Callable[[PublishedModels], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            # Under nohup, SIGHUP stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
        limiter = limiter_of(self._config)
        metrics_folder = tempfile.mkdtemp(prefix="nearfar-metrics-")
        beside: asyncio.Task[None] | None = None
        try:
            self._front_ends += [
                FrontEndProcess(listener, self._config, limiter, metrics_folder, self._models.latest, self._change)
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

    async def _beside(self, started: Callable[[PublishedModels], Awaitable[None]]) -> None:
        try:
            await started(self._models)
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

    async def _publish(self, message: Publish) -> None:
        """Return when all front ends use these models."""
        await asyncio.gather(*(each.publish(message) for each in self._front_ends))

    async def _change(self, message: Change) -> ModelCard | None:
        return await change(self._models, message.change)


async def change(
    models: PublishedModels, request: LoadRequest | UnloadRequest | LoadAdapterRequest | UnloadAdapterRequest
) -> ModelCard | None:
    """Raises the errors of the methods of `Models`."""
    match request:
        case LoadRequest():
            return await models.load(request)
        case UnloadRequest():
            await models.unload(request.model)
        case LoadAdapterRequest():
            return await models.load_adapter(request)
        case UnloadAdapterRequest():
            await models.unload_adapter(request)
    return None
