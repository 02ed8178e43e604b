"""Streams of events without a connection, whose client has room for an event or not, as a test requires."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from nearfar.server_fallback.api.drain import Drain
from nearfar.server_fallback.api.exchange import Exchange
from nearfar.server_fallback.api.sse import EXTENSION, EventStream
from nearfar.server_fallback.schema.common import Usage
from nearfar.server_fallback.schema.route import Route
from nearfar.server_fallback.text.output import NO_ENDS, Answering

# These values are new in each answer.
FRESH = re.compile(rb'"(chatcmpl-|cmpl-|call_)[^"]*"|"created":\d+')


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


def sometimes(asked: int) -> bool:
    return asked % 3 > 0


class Encoded:
    """Writes chunks as events, and counts them."""

    def __init__(self, write: Callable[[Any, bool], bytes | None], include_usage: bool = True) -> None:
        self._write, self._include_usage = write, include_usage
        self.calls = 0

    def __call__(self, chunk: Any) -> bytes | None:
        self.calls += 1
        written = self._write(chunk, self._include_usage)
        return None if written is None else b"data: " + written + b"\n\n"


@dataclass
class Record:
    """What an `AnswerRecord` counts."""

    texts: list[frozenset[int]] = field(default_factory=list)
    ends: list[dict[int, str]] = field(default_factory=list)
    usage: Usage | None = None

    def routed(self, route: Route | None) -> None:
        assert route is None

    def sent(self, texts: Collection[int], ends: Mapping[int, str] = NO_ENDS, usage: Usage | None = None) -> float:
        self.texts.append(frozenset(texts))
        self.ends.append(dict(ends))
        self.usage = usage or self.usage
        return 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Streamed:
    """An answer as events. ``direct`` counts those that are written without a task. ``rhythm``: whether the connection
    has room when it is asked for the nth time.
    """

    def __init__(self, write: Callable[[Any, bool], bytes | None], rhythm: Callable[[int], bool] = always) -> None:
        self.encode, self.record = Encoded(write), Record()
        self.parts: list[bytes] = []
        self.direct = self._asked = 0
        self._rhythm = rhythm

    @property
    def has_room(self) -> bool:
        self._asked += 1
        return self._rhythm(self._asked)

    def write_part(self, body: bytes) -> None:
        self.direct += 1
        self.parts.append(body)

    async def read(self, answering: Answering[Any]) -> None:
        """Raises the error of an answer before its first event."""

        async def send(message: Message) -> None:
            self.parts.append(message.get("body", b""))

        async def receive() -> Message:
            await asyncio.Future()
            raise AssertionError

        record: Any = self.record
        stream = EventStream(answering, self.encode, record, Exchange("r", {}), Drain(lambda: False), lambda: None)
        await stream({"type": "http", "extensions": {EXTENSION: self}}, receive, send)

    @property
    def events(self) -> bytes:
        return FRESH.sub(b"", b"".join(self.parts))
