"""Heartbeats, by a clock that the test moves: when a process counts as silent, and who ends it then."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hash_recipe import HashRecipe

from nearfar.compiler.runtime.errors import DeviceError, Unavailable
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.limiter import Limiter
from nearfar.server_fallback.api.stored_responses import OwnResponses
from nearfar.server_fallback.engine_process.messages import Attach, Opened
from nearfar.server_fallback.engine_process.remote_engine import RemoteEngine
from nearfar.server_fallback.executors import supervised
from nearfar.server_fallback.executors.executor import ExecutorState
from nearfar.server_fallback.executors.supervised import ServerProgram, SupervisedServer
from nearfar.server_fallback.front_ends.front_end import end_main_process
from nearfar.server_fallback.front_ends.front_end_process import FrontEndProcess, Owners
from nearfar.server_fallback.front_ends.messages import Beating, Configure, Publish
from nearfar.server_fallback.front_ends.shared_models import SharedModels
from nearfar.server_fallback.processes.connection import Connection
from nearfar.server_fallback.processes.frames import Beat, Returned, frame
from nearfar.server_fallback.processes.heartbeat import STEP_FACTOR, UNREADY_SHARE, Heart, Watch

HANG_SECONDS = 40.0


class Clock:
    """The timers of an event loop, which fire only while the test lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, Callable[[], None], asyncio.Future[None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.Future[None]:
        # A future can be cancelled, as a timer.
        cancelled = asyncio.get_running_loop().create_future()
        self._timers.append((self.now + seconds, callback, cancelled))
        return cancelled

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self._timers if timer[0] <= end]:
            timer = min(due, key=lambda each: each[0])
            self._timers.remove(timer)
            self.now, callback, cancelled = timer
            if not cancelled.cancelled():
                callback()
        self.now = end


class Process:
    """Stands in for a process that runs until it is killed."""

    pid = 1234

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True


def with_clock(work: Callable[[Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock, loop = Clock(), asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_later", clock.call_later)
            await work(clock)

    asyncio.run(run())


def test_a_process_is_silent_without_beats_and_alive_with_them() -> None:
    async def work(clock: Clock) -> None:
        hung = list[str]()
        watch = Watch(HANG_SECONDS, lambda: hung.append("hung"))
        heart = Heart(1.0, watch.beat)
        clock.wait(10 * HANG_SECONDS)
        assert watch.is_ready
        assert hung == []
        heart.stop()
        clock.wait(UNREADY_SHARE * HANG_SECONDS)
        assert watch.is_ready
        clock.wait(1.0)
        assert not watch.is_ready
        assert watch.silent_seconds == pytest.approx(UNREADY_SHARE * HANG_SECONDS + 1)
        watch.beat()
        assert watch.is_ready
        clock.wait(HANG_SECONDS)
        assert hung == []
        clock.wait(1.0)
        assert hung == ["hung"]
        # Once only.
        clock.wait(10 * HANG_SECONDS)
        assert hung == ["hung"]

    with_clock(work)


def test_a_step_may_take_long_and_not_without_end() -> None:
    async def work(clock: Clock) -> None:
        hung = list[str]()
        watch = Watch(HANG_SECONDS, lambda: hung.append("hung"))
        # The process beats, and its device computes one step.
        heart = Heart(1.0, lambda: watch.beat(step_seconds=clock.now))
        clock.wait(STEP_FACTOR * HANG_SECONDS)
        assert hung == []
        clock.wait(2.0)
        assert hung == ["hung"]
        heart.stop()

    with_clock(work)


def test_a_silent_engine_is_not_ready_and_is_then_ended() -> None:
    async def work(clock: Clock) -> None:
        engine, process = RemoteEngine(HashRecipe(), HANG_SECONDS), Process()
        engine._child._process = cast(Any, process)
        connection = Connection(engine._receive, engine._lost)
        opening = asyncio.ensure_future(engine._open(connection, Attach()))
        await asyncio.sleep(0)
        connection.data_received(frame(Returned(0, Opened(64, 0, "cpu", None, "", HANG_SECONDS))))
        await opening
        clock.wait(HANG_SECONDS)
        connection.data_received(frame(Beat()))
        clock.wait(HANG_SECONDS)
        assert "silent for 40 s" in str(engine.stats().failure)
        assert not process.killed
        call = asyncio.ensure_future(engine.unload_adapter("a"))
        await asyncio.sleep(0)
        clock.wait(1.0)
        assert process.killed
        # Its end fails what waits for it.
        connection.connection_lost(None)
        with pytest.raises(DeviceError, match="did not respond for 40 s and is started again"):
            await call

    with_clock(work)


def test_a_silent_front_end_is_ended() -> None:
    async def work(clock: Clock) -> None:
        def publish() -> Publish:
            return Publish(())

        limiter = Limiter(1, 1, 1.0)
        configure = Configure(ApiConfig(hang_seconds=HANG_SECONDS), started=False)
        none: Any = None
        front_end = FrontEndProcess(
            none, lambda: configure, limiter, Owners(), OwnResponses(0), "", publish, none, none
        )
        process: Any = Process()
        front_end._child._process = process
        front_end._child.connection = Connection(front_end._receive, front_end._on_end)
        front_end._child.connection.data_received(frame(Beating()))
        clock.wait(HANG_SECONDS)
        assert not process.killed
        clock.wait(1.0)
        assert process.killed

    with_clock(work)


def test_another_programs_server_that_fails_its_health_checks_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    responds = True

    async def answers(*_: object) -> bool:
        return responds

    async def work(clock: Clock) -> None:
        nonlocal responds
        server = SupervisedServer(ServerProgram("big", (), "http://there", hang_seconds=HANG_SECONDS))
        server._begin_watch()
        clock.wait(HANG_SECONDS)
        assert not server.ready
        assert server.detail == "has not responded for 40 s"
        silence = asyncio.ensure_future(server._silence())
        await turns()
        assert server.ready
        responds = False
        clock.wait(HANG_SECONDS)
        await turns()
        assert not silence.done()
        clock.wait(1.0)
        await turns()
        assert silence.done()
        assert silence.result() == "did not respond for 40 s"

    monkeypatch.setattr(supervised, "answers", answers)
    with_clock(work)


async def turns() -> None:
    """Let other tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_no_model_of_a_front_end_is_ready_while_the_main_process_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(clock: Clock) -> None:
        link = Connection(lambda _: None, lambda: Unavailable("ended"))
        models = SharedModels(link)
        monkeypatch.setattr(models._table, "states", lambda: {"m": ExecutorState(ready=True, detail="ready")})
        link.watch(HANG_SECONDS, lambda: None)
        assert models.states()["m"].ready
        clock.wait(HANG_SECONDS / 2)
        assert models.states()["m"] == ExecutorState(ready=False, detail="the main process has been silent for 20 s")
        link.data_received(frame(Beat()))
        assert models.states()["m"].ready
        link.connection_lost(None)

    with_clock(work)


def test_only_the_main_process_is_ended_and_no_other_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append((pid, number)))
    end_main_process(os.getppid() + 1, HANG_SECONDS)
    assert ended == []
    end_main_process(os.getppid(), HANG_SECONDS)
    assert ended == [(os.getppid(), signal.SIGKILL)]
