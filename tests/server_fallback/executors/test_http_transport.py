"""Our HTTP transport for httpx, against servers that follow a script."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import httpx
import pytest
import uvloop
from waiting import WAIT_SECONDS, until

from nearfar.server_fallback.executors import http_transport
from nearfar.server_fallback.executors.http_transport import BODY, Body, Transport, transport_for

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def scripted(
    script: Script, read_seconds: float = WAIT_SECONDS
) -> AsyncIterator[tuple[httpx.AsyncClient, str, list[int]]]:
    """A client, the address of a server that runs the script for every connection, and the number of connections."""
    connections: list[int] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    timeout = httpx.Timeout(WAIT_SECONDS, read=read_seconds)
    try:
        async with httpx.AsyncClient(transport=Transport(trust_env=False), timeout=timeout) as client:
            yield client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    def run_it(work: Any) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(work)

    return run_it


def answering(*answers: bytes) -> Script:
    """Each request gets the next of ``answers``, in pieces that "|" separates."""
    rest = list(answers)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while rest:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
            await reader.readexactly(size)
            for piece in rest.pop(0).split(b"|"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)

    return script


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe|llo", b"hello"),
        (CHUNKED + b"2\r\nhe\r\n|3\r\nl|lo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\n\r\nhe|llo", b"hello"),
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n|" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_bodies_of_every_length_are_read(run: Any, answer: bytes, body: bytes) -> None:
    async def check() -> None:
        async with scripted(answering(answer)) as (client, url, _):
            response = await client.post(f"{url}/path?a=b", json={"a": 1})
            assert response.content == body
            assert "x" not in response.headers

    run(check())


def test_a_request_is_sent_as_httpx_built_it(run: Any) -> None:
    received = bytearray()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        received.extend(await reader.readexactly(7))
        writer.write(OK)

    async def check() -> None:
        async with scripted(script) as (client, url, _):
            await client.post(f"{url}/a?b=c d", json={"a": 1}, headers={"X-Request-Id": "7"})

    run(check())
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a?b=c%20d HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Request-Id: 7\r\n" in head
    assert (b"\r\nContent-Length: 7" in head, body) == (True, b'{"a":1}')


def test_a_connection_is_used_again_unless_its_server_or_its_reader_is_done_with_it(run: Any) -> None:
    async def check() -> None:
        twice = answering(OK, OK)
        async with scripted(twice) as (client, url, connections):
            assert [(await client.get(url)).content for _ in range(2)] == [b"ok"] * 2
            assert len(connections) == 1
            # The server closes it, which is not an error of the next request.
            transport = client._transport
            assert isinstance(transport, Transport)
            await until(lambda: not transport._all)
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(url)
            assert len(connections) == 2
        closes = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        async with scripted(answering(closes, OK)) as (client, url, connections):
            assert [(await client.get(url)).content for _ in range(2)] == [b"ok"] * 2
            assert len(connections) == 2
        async with scripted(answering(CHUNKED + b"2\r\nhe\r\n|2\r\nhe\r\n|", OK)) as (client, url, connections):
            async with client.stream("GET", url):
                pass
            assert (await client.get(url)).content == b"ok"
            assert len(connections) == 2

    run(check())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", httpx.RemoteProtocolError),
        (CHUNKED + b"2\r\nhe\r\n", httpx.RemoteProtocolError),
        (b"SSH-2.0-OpenSSH\r\n", httpx.RemoteProtocolError),
        (CHUNKED + b"zz\r\n", httpx.RemoteProtocolError),
    ],
)
def test_a_broken_answer_is_one_of_httpxs_errors(run: Any, answer: bytes, kind: type[Exception]) -> None:
    async def check() -> None:
        async with scripted(answering(answer)) as (client, url, _):
            with pytest.raises(kind):
                await client.get(url)

    run(check())


def test_silence_is_a_timeout_before_and_in_the_answer(run: Any) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"2\r\nhe\r\n")
        await asyncio.sleep(3600)

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
        await asyncio.sleep(3600)

    async def check() -> None:
        for script in (silent, mute):
            async with scripted(script, read_seconds=0.2) as (client, url, _):
                started = monotonic()
                with pytest.raises(httpx.ReadTimeout):
                    await client.get(url)
                assert monotonic() - started > 0.15

    run(check())


class Clock:
    """The time of the transport, which passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(http_transport, "monotonic", lambda: self.seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_slow_answers_are_not_silent_ones(run: Any, clock: Clock) -> None:
    async def check() -> None:
        received, bodies = 0, list[Body]()

        def waits(sent: int) -> bool:
            return received == sent and any(body._open_connection()._waiter is not None for body in bodies)

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED)
            for sent in range(8):
                await until(lambda sent=sent: waits(sent))  # type: ignore[misc]
                # Less than the limit, which all pauses together exceed.
                clock.seconds += 0.4 * WAIT_SECONDS
                bodies[0]._open_connection()._check_time()
                writer.write(b"1\r\nx\r\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        async with scripted(slow) as (client, url, _), client.stream("GET", url) as response:
            bodies.append(response.extensions[BODY])
            async for part in response.aiter_raw():
                received += len(part)
        assert received == 8

    run(check())


def test_a_part_that_has_arrived_is_not_late_if_the_loop_is(run: Any, clock: Clock) -> None:
    async def check() -> None:
        async with (
            scripted(answering(CHUNKED + b"1\r\nx\r\n", b"")) as (client, url, _),
            client.stream("GET", url) as response,
        ):
            body = response.extensions[BODY]
            assert await body.read(None) == b"x"
            for part in (b"y", b"z"):
                reading = asyncio.create_task(body.read(None))
                await asyncio.sleep(0)
                body._open_connection().data_received(b"1\r\n" + part + b"\r\n")
                # Before the reader runs again, the limit passes.
                clock.seconds += 2 * WAIT_SECONDS
                body._open_connection()._check_time()
                assert await reading == part

    run(check())


def test_a_deadline_ends_a_read_although_the_server_writes(run: Any, clock: Clock) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def check() -> None:
        async with scripted(endless) as (client, url, _), client.stream("GET", url) as response:
            body = response.extensions[BODY]
            assert isinstance(body, Body)
            received = b""

            async def read_on() -> None:
                nonlocal received
                while True:
                    received += await body.read(10.0)
                    clock.seconds += 1.0

            async with asyncio.timeout(WAIT_SECONDS) as limit:
                with pytest.raises(TimeoutError):
                    await read_on()
            assert not limit.expired()
            assert len(received) >= 10

    run(check())


def test_a_deadline_ends_a_read_while_nothing_arrives(run: Any) -> None:
    async def check() -> None:
        async with (
            scripted(answering(CHUNKED + b"1\r\nx\r\n", b"")) as (client, url, _),
            client.stream("GET", url) as response,
        ):
            body = response.extensions[BODY]
            assert await body.read(None) == b"x"
            async with asyncio.timeout(WAIT_SECONDS) as limit:
                with pytest.raises(TimeoutError):
                    await body.read(monotonic() + 0.05)
            assert not limit.expired()

    run(check())


def test_no_more_is_read_than_the_reader_wants(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "MAX_BUFFERED_BYTES", 1 << 16)
    size, written = 64 << 20, 0

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        # The connection is aborted at the end, so nothing may be left in the buffer.
        writer.transport.set_write_buffer_limits(0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(b"x" * (1 << 16))
            written += 1 << 16
            await writer.drain()

    async def check() -> None:
        async with scripted(large) as (client, url, _), client.stream("GET", url) as response:
            await asyncio.sleep(0.1)
            assert written < size // 2
            total = 0
            async for part in response.aiter_raw():
                total += len(part)
            assert total == size

    run(check())


def test_a_cancelled_request_hangs_up_and_a_closed_client_ends_running_requests(run: Any) -> None:
    received = ended = 0

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received, ended
        await reader.readuntil(b"\r\n\r\n")
        received += 1
        writer.write(CHUNKED)
        assert await reader.read() == b""
        ended += 1

    async def check() -> None:
        async with scripted(mute) as (client, url, _):
            reading = asyncio.create_task(client.get(url))
            await until(lambda: received == 1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await until(lambda: ended == 1)
            reading = asyncio.create_task(client.get(url))
            await until(lambda: received == 2)
            await client.aclose()
            with pytest.raises(httpx.ReadError):
                await reading

    run(check())


def test_a_closed_connection_is_freed_without_a_garbage_collection(run: Any) -> None:
    """With TLS, each has buffer of 256 KiB."""

    def held() -> int:
        return sum(type(each) is http_transport.Connection for each in gc.get_objects())

    broken = CHUNKED + b"2\r\nhe\r\n"

    async def work() -> None:
        before = held()
        # The server ends a connection when it has no answers left.
        for answers in ((OK, OK), (OK, broken), (b"not HTTP",), ()):
            async with scripted(answering(*answers)) as (client, url, _):
                for _ in range(2):
                    # An error that was kept here would keep its connection.
                    with suppress(httpx.TransportError):
                        await client.get(url)
        async with scripted(answering(broken + b"|" + OK * 1000)) as (client, url, _):
            async with client.stream("GET", url) as answer:
                await anext(answer.aiter_raw())
            del answer
        await until(lambda: held() == before)

    gc.disable()
    try:
        run(work())
    finally:
        gc.enable()


def test_a_server_that_is_not_there_is_a_connect_error(run: Any) -> None:
    async def check() -> None:
        async with httpx.AsyncClient(transport=Transport(trust_env=False)) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("http://127.0.0.1:9/")

    run(check())


def test_a_proxy_in_the_environment_needs_httpxs_own_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert isinstance(transport_for(trust_env=True), Transport)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")
    assert transport_for(trust_env=True) is None
    assert isinstance(transport_for(trust_env=False), Transport)
