"""The app on a port of this machine, in a thread of this process, for what needs real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from fake_models import FakeModels

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.server import Server, bind


@contextmanager
def live_server(models: FakeModels, config: ApiConfig) -> Iterator[int]:
    """Its port, while it serves."""
    listener = bind("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    server = Server(create_app(models, config))
    # asyncio's own loop: uvloop's may not be made twice in one process without a warning.
    thread = Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield port
    finally:
        server.should_exit = True
        thread.join(10)


def wait_until(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    give_up = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < give_up, "did not happen in time"
        time.sleep(0.005)
