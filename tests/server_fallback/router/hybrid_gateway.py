"""The gateway's app with a scripted near model, without a socket; and a far server in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Event, Thread
from typing import Any

from fake_openai import running
from fastapi import FastAPI
from hybrid_sides import FakeFar, FakeNear
from waiting import WAIT_SECONDS

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.executor import Executor, Opening, Transcribes
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.opening import HybridOpener
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.local_embedder import LocalEmbedder
from nearfar.server_fallback.schema.models import LoadRequest


class NearOpener:
    def __init__(self, near: FakeNear) -> None:
        self._near = near

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            return self._near

        return Opening(name or model, 1000, open_it)


@asynccontextmanager
async def gateway(
    near: FakeNear,
    far: Far,
    rules: dict[str, Any],
    config: ApiConfig | None = None,
    embedder: LocalEmbedder | None = None,
    transcriber: Transcribes | None = None,
) -> AsyncIterator[FastAPI]:
    """An app with the model "tiny"."""
    registry = Registry(HybridOpener(NearOpener(near), far, Policy.read(rules), embedder, transcriber))
    await registry.load(LoadRequest(model="tiny"))
    try:
        yield create_app(registry, config or ApiConfig(), routed=True)
    finally:
        await registry.close(0.0)


@contextmanager
def elsewhere(far: FakeFar) -> Iterator[None]:
    """While the far server runs in its own thread."""
    started = Event()
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        async with running(far):
            started.set()
            await stop.wait()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(WAIT_SECONDS)
    try:
        yield
    finally:
        stops[0]()
        thread.join(WAIT_SECONDS)
