"""Calls over a connection: results, errors, and what happens to the work of a caller that leaves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from waiting import until

from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable
from nearfar.server_fallback.processes.connection import Connection, WithParts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")


def ended() -> NearfarError:
    return Unavailable("the other side has ended")


@asynccontextmanager
async def connected(receive: Callable[[Any], Any]) -> AsyncIterator[tuple[Connection, Connection]]:
    """A connection that sends, and one that receives."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    sends, receives = Connection(lambda _: None, ended), Connection(receive, ended)
    await loop.create_unix_connection(lambda: sends, sock=ours)
    await loop.create_unix_connection(lambda: receives, sock=theirs)
    try:
        yield sends, receives
    finally:
        await asyncio.gather(sends.close(), receives.close())


class Strange(Exception):
    """Cannot be sent: it holds a function."""

    def __init__(self) -> None:
        super().__init__(lambda: None)


def test_a_call_returns_the_result_or_the_error_of_a_function_or_of_a_coroutine() -> None:
    async def later(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise RequestError("below 0", param="value")
        return value + 1

    def receive(message: Any) -> Any:
        match message:
            case int():
                return later(message)
            case "fail":
                raise RequestError("failed", code="why")
            case "strange":
                raise Strange
        return message * 2

    async def work() -> None:
        async with connected(receive) as (connection, _):
            results = await asyncio.gather(*(connection.call(each) for each in (1, "ab", 2, "x" * 1_000_000)))
            assert results == [2, "abab", 3, "x" * 2_000_000]
            for message, text, details in ((-1, "below 0", {"param": "value"}), ("fail", "failed", {"code": "why"})):
                with pytest.raises(RequestError, match=text) as error:
                    await connection.call(message)
                assert error.value.details == details
            with pytest.raises(Unavailable, match="Strange"):
                await connection.call("strange")
            assert await connection.call("still") == "stillstill"

    asyncio.run(work())


def test_the_parts_of_a_result_arrive_in_order_and_before_it() -> None:
    async def count(part: Callable[[Any], None]) -> str:
        part(0)
        await asyncio.sleep(0.01)
        part(1)
        part(2)
        return "done"

    async def work() -> None:
        async with connected(lambda _: WithParts(count)) as (connection, _):
            first, second = list[int](), list[int]()
            calls = (connection.call("", on_part=each.append) for each in (first, second))
            assert await asyncio.gather(*calls, connection.call("")) == ["done"] * 3
            assert first == second == [0, 1, 2]
            # Nobody reads the parts of a call that was cancelled.
            parts = list[int]()
            task = asyncio.ensure_future(connection.call("", on_part=parts.append, cancels=True))
            await until(lambda: parts == [0])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await connection.call("") == "done"
            assert parts == [0]

    asyncio.run(work())


def test_a_message_runs_before_the_messages_after_it() -> None:
    received = list[object]()

    def receive(message: object) -> None:
        received.append(message)

    async def work() -> None:
        async with connected(receive) as (connection, _):
            called = asyncio.ensure_future(connection.call("first"))
            await asyncio.sleep(0)
            connection.send("second")
            await called
            await until(lambda: received == ["first", "second"])

    asyncio.run(work())


def test_work_for_a_caller_alone_ends_with_it_and_other_work_does_not() -> None:
    running = dict[str, asyncio.Event]()
    done = set[str]()

    async def wait(name: str) -> None:
        running[name] = asyncio.Event()
        try:
            await running[name].wait()
            done.add(name)
        finally:
            del running[name]

    async def work() -> None:
        async with connected(wait) as (connection, receives):
            calls = {
                name: asyncio.ensure_future(connection.call(name, cancels=name.startswith("alone")))
                for name in ("alone", "alone too", "change", "change too")
            }
            await until(lambda: len(running) == 4)
            calls["alone"].cancel()
            calls["change"].cancel()
            await until(lambda: len(running) == 3)
            assert "alone" not in running
            # The end of the connection is the end of the caller.
            await receives.close()
            for name in ("alone too", "change too"):
                with pytest.raises(Unavailable, match="the other side has ended"):
                    await calls[name]
            await until(lambda: running.keys() == {"change", "change too"})
            for event in list(running.values()):
                event.set()
            await until(lambda: done == {"change", "change too"})
            with pytest.raises(Unavailable, match="the other side has ended"):
                await connection.call("late")

    asyncio.run(work())
