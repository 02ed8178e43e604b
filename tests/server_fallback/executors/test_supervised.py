"""A supervised server that is stopped at an awkward moment of its restart. The other tests are in `test_vllm.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from test_vllm import alive
from waiting import WAIT_SECONDS, until

from nearfar.server_fallback.executors import supervised
from nearfar.server_fallback.executors.supervised import ServerProgram, SupervisedServer
from nearfar.server_fallback.processes.supervisor import Restarts


class LostMachine:
    """Implements `Companions`: another machine that is connected at the first start, and never again after a
    failure.
    """

    def __init__(self) -> None:
        self.failure = asyncio.get_running_loop().create_future()
        # While this is cleared, the server does not answer its health checks.
        self.responds = asyncio.Event()
        self.responds.set()

    @property
    def missing(self) -> list[int]:
        return [1] if self.failure.done() else []

    async def start(self) -> None:
        if self.failure.done():
            await asyncio.Event().wait()

    async def failed(self) -> str:
        reason: str = await asyncio.shield(self.failure)
        return reason

    async def stop(self) -> None: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def supervising(*command: str, hang_seconds: float = 60) -> AsyncIterator[tuple[SupervisedServer, LostMachine]]:
    async def healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await machine.responds.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    health = await asyncio.start_server(healthy, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{health.sockets[0].getsockname()[1]}/"
    machine = LostMachine()
    program = ServerProgram("big", command, url, companions=machine, restarts=Restarts(0.0), hang_seconds=hang_seconds)
    server = SupervisedServer(program)
    async with health:
        await server.open()
        # From now on, it waits for the end of the process.
        await asyncio.sleep(0)
        yield server, machine


def test_one_whose_process_ends_in_the_moment_of_the_stop_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with supervising("sleep", "3600") as (server, machine):
            process, pid = server._process, server.pid
            assert process is not None
            assert pid is not None
            ended = asyncio.get_running_loop().create_future()
            monkeypatch.setattr(process, "wait", lambda: ended)
            machine.failure.set_result("lost node 1")
            await until(lambda: not server.ready and not alive(pid))
            # Both reach the supervision in one turn of the event loop.
            ended.set_result(0)
            stopping = asyncio.create_task(server.stop())
            await until(stopping.done)
            assert server.detail == "stopped"

    asyncio.run(check())


def test_one_whose_log_is_still_held_open_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervised, "LOG_END_SECONDS", WAIT_SECONDS)
    left = tmp_path / "left"
    # A process in its own session, which the end of the process group does not reach, holds the log's pipe.
    holder = f"setsid sh -c 'echo $$ > {left}; exec sleep 5' & exec sleep 3600"

    async def check() -> None:
        async with supervising("sh", "-c", holder) as (server, machine):
            await until(lambda: left.exists() and left.read_text() != "")
            machine.failure.set_result("lost node 1")
            await until(lambda: server.pid is None)
            assert alive(int(left.read_text()))
            await server.stop()
            assert server.detail == "stopped"

    asyncio.run(check())


def test_one_that_waits_for_a_lost_machine_forever_is_killed_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervised, "FAILED_STOP_SECONDS", 0.1)
    ready = tmp_path / "ready"

    async def check() -> None:
        async with supervising("sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done") as (
            server,
            machine,
        ):
            pid = server.pid
            assert pid is not None
            await until(ready.exists)
            started = asyncio.get_running_loop().time()
            machine.failure.set_result("lost node 1")
            await until(lambda: not alive(pid))
            assert asyncio.get_running_loop().time() - started < server._program.stop_seconds
            await server.stop()

    asyncio.run(check())


def test_one_that_runs_and_does_not_respond_is_not_ready_and_is_then_started_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def check() -> None:
        async with supervising("sleep", "3600", hang_seconds=0.5) as (server, machine):
            hung = server.pid
            assert hung is not None
            machine.responds.clear()
            await until(lambda: not server.ready)
            assert server.pid == hung
            assert "has not responded for" in server.detail
            await until(lambda: server.pid not in (hung, None))
            machine.responds.set()
            await until(lambda: server.ready)
            assert server.detail == "ready"
            assert not alive(hung)
            await server.stop()

    asyncio.run(check())
    assert "big | did not respond for 0.5 s; restarting it" in capfd.readouterr().err
