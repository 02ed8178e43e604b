"""The app on a port of this machine, in a thread of this process, for tests that need real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGTERM
from threading import Thread

from fake_models import FakeModels

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.server import Server, bind


@dataclass(frozen=True)
class LiveServer:
    server: Server
    thread: Thread
    port: int

    def signal(self) -> None:
        """Act as if the process had received a signal."""
        self.server.handle_exit(SIGTERM, None)


@contextmanager
def live_server(models: FakeModels, config: ApiConfig) -> Iterator[LiveServer]:
    """While it serves."""
    listener = bind("127.0.0.1", 0)
    server = Server(create_app(models, config))
    thread = Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield LiveServer(server, thread, int(listener.getsockname()[1]))
    finally:
        server.should_exit = True
        thread.join(10)


def wait_until(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    give_up = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < give_up, "did not happen in time"
        time.sleep(0.005)
