"""The app on a port of this machine, in a thread of this process, for tests that need real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGTERM
from threading import Thread
from typing import Any

import pytest
import uvicorn.server
from fake_models import FakeModels
from waiting import WAIT_SECONDS, wait_until

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.server import Server, bind
from nearfar.server_fallback.api.service import Service


@dataclass(frozen=True)
class LiveServer:
    server: Server
    thread: Thread
    port: int

    @property
    def service(self) -> Service:
        return self.server._service

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self.server._loop is not None
        return self.server._loop

    def configure(self, config: ApiConfig) -> None:
        """Return when the server has this configuration. Raises its errors."""

        async def configured() -> None:
            self.server.configure(config)

        asyncio.run_coroutine_threadsafe(configured(), self.loop).result(WAIT_SECONDS)

    def signal(self) -> None:
        """Act as if the process had received a signal."""
        self.server.handle_exit(SIGTERM, None)


class ShortSleeps:
    """asyncio for uvicorn, which sleeps a tenth of a second before it sees that it should end, and another one then."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@contextmanager
def live_server(models: FakeModels, config: ApiConfig) -> Iterator[LiveServer]:
    """While it serves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", ShortSleeps())
        listener = bind("127.0.0.1", 0)
        server = Server(create_app(models, config))
        thread = Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield LiveServer(server, thread, int(listener.getsockname()[1]))
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)
