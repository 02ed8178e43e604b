"""A server process from its start to its signal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from asgi import HI
from fake_models import FakeExecutor, FakeModels
from live_server import live_server
from waiting import WAIT_SECONDS, wait_until

from nearfar.compiler.runtime.errors import BundleError
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.server import bind, run_server

# Prints its port, then logs to standard error. The first piece of an answer is followed by the others when a line is
# written to it.
PROGRAM = """
import sys
import asyncio
from fake_models import FakeExecutor, FakeModels
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.log import configure_logs
from nearfar.server_fallback.api.server import bind, run_server

configure_logs(sys.stderr)

class Held(FakeExecutor):
    async def _said(self, request, call):
        async for piece in super()._said(request, call):
            yield piece
            if self.requests:
                self.requests.clear()
                await asyncio.to_thread(sys.stdin.readline)

models = FakeModels(Held(pieces=["a"] * 40))
listener = bind("127.0.0.1", 0)

async def started():
    print(listener.getsockname()[1], flush=True)

run_server(create_app(models, ApiConfig(drain_seconds=100)), listener, started)
print("closed" if models.closed_after is not None else "left open", flush=True)
"""


# A thread that never ends keeps Python from exiting.
HANGING = """
import asyncio, signal, sys, threading, time
from fake_models import FakeModels
from nearfar.server_fallback.api import server
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.log import configure_logs

configure_logs(sys.stderr)
server.STUCK_SECONDS = 0.3
# Under nohup, which this test may run under, a server ignores the signal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
listener = server.bind("127.0.0.1", 0)

def hang():
    time.sleep(1000)

async def started():
    asyncio.get_running_loop().run_in_executor(None, hang)
    threading.Thread(target=hang).start()
    print(listener.getsockname()[1], flush=True)

server.run_server(create_app(FakeModels(), ApiConfig(drain_seconds=0)), listener, started)
"""


@contextmanager
def process(program: str = PROGRAM) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    ) as running:
        try:
            assert running.stdout is not None
            yield running, int(running.stdout.readline())
        finally:
            running.kill()


def lines_of(sock: socket.socket) -> Iterator[str]:
    yield from sock.makefile("r", encoding="utf-8", newline="\n")


def ask(port: int) -> socket.socket:
    """A stream that has started."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    body = json.dumps({**HI, "stream": True})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    sock.sendall((head + body).encode())
    assert sock.recv(15) == b"HTTP/1.1 200 OK"
    return sock


def test_sigterm_turns_new_requests_away_finishes_the_old_and_ends_with_0() -> None:
    with process() as (running, port), ask(port) as sock:
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/health/ready", timeout=WAIT_SECONDS).status_code == 200
        running.send_signal(signal.SIGTERM)
        ready = httpx.get(f"{url}/health/ready", timeout=WAIT_SECONDS)
        assert (ready.status_code, ready.json()["status"]) == (503, "shutting down")
        assert httpx.get(f"{url}/health/live", timeout=WAIT_SECONDS).status_code == 200
        turned_away = httpx.post(f"{url}/v1/chat/completions", json=HI, timeout=WAIT_SECONDS)
        assert turned_away.status_code == 503
        assert "retry-after" in turned_away.headers
        assert running.stdin is not None
        running.stdin.write("\n")
        running.stdin.flush()
        text = "".join(lines_of(sock))
        assert text.count('"content":"a"') == 40
        assert "[DONE]" in text
        out, log = running.communicate(timeout=WAIT_SECONDS)
        assert (running.returncode, out) == (0, "closed\n")
        lines = [json.loads(line) for line in log.splitlines()]
        assert {"event": "draining", "signal": "SIGTERM", "seconds": 100}.items() <= lines[0].items()
        streamed = next(line for line in lines if line.get("completion_tokens"))
        assert (streamed["route"], streamed["status"], streamed["finish_reason"]) == (
            "/v1/chat/completions",
            200,
            "stop",
        )


def test_the_end_of_the_terminal_ends_a_server_in_which_a_thread_hangs() -> None:
    with process(HANGING) as (running, _):
        running.send_signal(signal.SIGHUP)
        _, log = running.communicate(timeout=WAIT_SECONDS)
        draining, stuck = (json.loads(line) for line in log.splitlines())
        assert (running.returncode, draining["signal"], stuck["event"]) == (1, "SIGHUP", "stuck")
        assert len([thread for thread in stuck["threads"] if thread.endswith(" hang")]) == 2


def test_requests_that_outlive_the_drain_get_an_error_and_are_ended() -> None:
    models = FakeModels(FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.02))
    with live_server(models, ApiConfig(drain_seconds=0.1)) as live, ask(live.port) as sock:
        live.signal()
        text = "".join(lines_of(sock))
        assert '"error":{"message":"the server is shutting down' in text
        assert "[DONE]" not in text
        live.thread.join(WAIT_SECONDS)
        assert not live.thread.is_alive()
        assert (models.fake.open, models.fake.cancelled) == (0, 1)
        assert models.closed_after is not None


def test_a_second_signal_does_not_wait() -> None:
    models = FakeModels(FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.02))
    with live_server(models, ApiConfig(drain_seconds=60)) as live, ask(live.port) as sock:
        live.signal()
        url = f"http://127.0.0.1:{live.port}/health/ready"
        wait_until(lambda: httpx.get(url, timeout=WAIT_SECONDS).status_code == 503)
        assert models.fake.open == 1
        live.signal()
        assert "shutting down" in "".join(lines_of(sock))
        live.thread.join(WAIT_SECONDS)
        assert not live.thread.is_alive()


def test_a_failure_at_the_start_ends_the_server() -> None:
    async def begun() -> None:
        raise BundleError("torn")

    with pytest.raises(BundleError, match="torn"):
        run_server(create_app(FakeModels(), ApiConfig()), bind("127.0.0.1", 0), begun)
