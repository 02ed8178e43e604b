"""A server with OpenAI's routes that follows a test's script: it answers, refuses, breaks off or hangs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from waiting import WAIT_SECONDS, hang

MODEL = "there"


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None


@dataclass
class Reply:
    """A reply is ``status`` with a JSON ``value``, or ``chunks`` as events that break off after ``breaks_after`` of
    them. With ``hangs``, nothing is sent; ``hangs_at``: nothing more from the event with this number on, while the time
    limits of its reader pass (`hang`).
    """

    status: int = 200
    value: Any = None
    chunks: list[Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    breaks_after: int | None = None
    hangs: bool = False
    hangs_at: int | None = None
    seconds_between: float = 0.0


def chunk(text: str = "", *, finish: str | None = None, role: str | None = None, index: int = 0) -> dict[str, Any]:
    delta = ({"role": role} if role is not None else {}) | ({"content": text} if text else {})
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": MODEL, "choices": [choice]}


def text_chunks(*texts: str, usage: dict[str, Any] | None = None) -> list[Any]:
    """The chunks of a complete chat answer."""
    usage_chunk = [{**chunk(), "choices": [], "usage": usage}] if usage else []
    return [chunk(role="assistant"), *(chunk(text) for text in texts), chunk(finish="stop"), *usage_chunk]


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


class FakeOpenAI:
    """``reply`` makes the answer to every request except those for the list of models. ``received`` lists these
    requests.
    """

    def __init__(
        self, reply: Callable[[Received], Reply] = lambda _: Reply(chunks=text_chunks("hi", usage=USAGE))
    ) -> None:
        self.reply = reply
        self.models: list[dict[str, Any]] = [{"id": MODEL, "object": "model", "max_model_len": 128}]
        self.models_status = 200
        # While this is cleared, the list of models is not sent.
        self.lists = asyncio.Event()
        self.lists.set()
        self.received: list[Received] = []
        self.hung_up = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """Act like kill -9: the server stops listening, and every connection breaks."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (received := await read_request(reader)) is not None:
                if received.path == "/v1/models":
                    await self.lists.wait()
                    await send(writer, Reply(self.models_status, {"object": "list", "data": self.models}))
                    continue
                self.received.append(received)
                if not await send(writer, self.reply(received)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up += 1
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode().strip().split("\r\n")
    try:
        method, path, _ = first.split(" ")
    except ValueError as error:
        # A router tries HTTP/2 first, whose greeting is no request.
        raise ConnectionError(f"no request: {first!r}") from error
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, json.loads(data) if data else None)


async def send(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    """Returns whether the connection may be used again."""
    if reply.hangs:
        await asyncio.sleep(3600)
    extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
    if reply.chunks is None:
        body = json.dumps(reply.value).encode() if not isinstance(reply.value, bytes) else reply.value
        writer.write(f"HTTP/1.1 {reply.status} X\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body)
        await writer.drain()
        return True
    if reply.breaks_after == 0:
        return False
    writer.write(
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{extra}\r\n".encode()
    )
    for index, value in enumerate([*reply.chunks, "[DONE]"]):
        if index == reply.breaks_after:
            await writer.drain()
            return False
        if index == reply.hangs_at:
            await hang(quickly=True)
        event = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await writer.drain()
        await asyncio.sleep(reply.seconds_between)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


@asynccontextmanager
async def running(*servers: FakeOpenAI) -> AsyncIterator[None]:
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            await server.die()


@contextmanager
def in_a_thread(server: FakeOpenAI) -> Iterator[str]:
    """Yield the server's address while it runs on its own event loop."""
    ready, loop, stop = Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with running(server):
            ready.set()
            await stop.wait()

    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(WAIT_SECONDS)
    try:
        yield server.url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_SECONDS)
        loop.close()
