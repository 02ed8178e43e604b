"""Connection: one end of a socket between two processes, on an event loop. Either side may call the other, and both may
send beats, so that each notices when the other hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast, overload

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from .frames import HEADER_BYTES, Ask, Beat, Call, Cancel, Part, Result, Returned, frame, size_of
from .heartbeat import Heart, Watch, beat_seconds


@dataclass(frozen=True, slots=True)
class WithParts:
    """Work on a call whose result has parts, each of which it passes to the function that it is given."""

    work: Callable[[Callable[[Any], None]], Coroutine[Any, Any, Any]]


class Connection(asyncio.Protocol):
    """Belongs to one event loop, which calls ``receive`` with each message; a coroutine that it returns is run, and so
    is, for a call, `WithParts`. If the message is a call, the result or the error is returned to the caller. ``on_end``
    is called once no further message can arrive, and returns the error of the calls that still wait.
    """

    def __init__(self, receive: Callable[[Any], Any], on_end: Callable[[], NearfarError]) -> None:
        self._receive, self._on_end = receive, on_end
        self._numbers = itertools.count()
        # The calls of this side, what reads the parts of their results, the work on those of the other side that it may
        # cancel, and all other work.
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._on_part: dict[int, Callable[[Any], None]] = {}
        self._cancellable: dict[int, asyncio.Task[None]] = {}
        self._background = Background()
        self._failure: NearfarError | None = None
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._closed = asyncio.Event()
        self._heart: Heart | None = None
        self._watch: Watch | None = None

    def send(self, message: object) -> None:
        """Does nothing once the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    @overload
    async def call(
        self, message: Ask[Result], *, cancels: bool = False, on_part: Callable[[Any], None] | None = None
    ) -> Result: ...

    @overload
    async def call(
        self, message: object, *, cancels: bool = False, on_part: Callable[[Any], None] | None = None
    ) -> Any: ...

    async def call(
        self, message: object, *, cancels: bool = False, on_part: Callable[[Any], None] | None = None
    ) -> Any:
        """The result of a message. ``cancels``: if this is cancelled or ends, so is the work of the other side.
        ``on_part`` is called with each part of the result that arrives before it. Raises the error of the other side,
        and that of ``on_end`` if it has ended.
        """
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        if on_part is not None:
            self._on_part[number] = on_part
        try:
            self.send(Call(number, message, cancels))
            return await future
        finally:
            self._on_part.pop(number, None)
            if self._calls.pop(number, None) is not None and cancels:
                self.send(Cancel(number))

    def beat(self, hang_seconds: float, step_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """Send beats to the other side, which notices if they are missing for ``hang_seconds``."""
        self._heart = Heart(beat_seconds(hang_seconds), lambda: self.send(Beat(step_seconds())))

    def watch(self, hang_seconds: float, on_hang: Callable[[], None]) -> None:
        """Expect beats of the other side from now on."""
        self._watch = Watch(hang_seconds, on_hang)

    @property
    def silent_seconds(self) -> float:
        return 0.0 if self._watch is None else self._watch.silent_seconds

    @property
    def is_ready(self) -> bool:
        """False while the other side is silent."""
        return self._watch is None or self._watch.is_ready

    async def close(self) -> None:
        """Send all pending data, and close."""
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= HEADER_BYTES:
            end = start + HEADER_BYTES + size_of(received[start : start + HEADER_BYTES])
            if len(received) < end:
                break
            with memoryview(received) as view:
                message = pickle.loads(view[start + HEADER_BYTES : end])
            start = end
            self._take(message)
        del received[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._closed.set()
        for timers in (self._heart, self._watch):
            if timers is not None:
                timers.stop()
        for task in self._cancellable.values():
            task.cancel()
        self._failure = self._on_end()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(self._failure)

    # --- messages ---

    def _take(self, message: object) -> None:
        match message:
            case Returned():
                self._return(message)
            case Part(number, value):
                if number in self._on_part:
                    self._on_part[number](value)
            case Beat(step_seconds):
                if self._watch is not None:
                    self._watch.beat(step_seconds)
            case Call():
                self._answer(message)
            case Cancel(number):
                if number in self._cancellable:
                    self._cancellable[number].cancel()
            case _:
                work = self._receive(message)
                if work is not None:
                    self._background.run(work)

    def _answer(self, call: Call) -> None:
        number = call.number
        try:
            value = self._receive(call.message)
        except Exception as error:
            self._send_error(number, error)
            return
        if isinstance(value, WithParts):
            value = value.work(lambda part: self.send(Part(number, part)))
        if not asyncio.iscoroutine(value):
            self.send(Returned(number, value))
            return
        task = self._background.run(self._work(number, value))
        if call.cancels:
            self._cancellable[number] = task
            task.add_done_callback(lambda _: self._cancellable.pop(number, None))

    async def _work(self, number: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await work
        except Exception as error:
            self._send_error(number, error)
        else:
            self.send(Returned(number, value))

    def _send_error(self, number: int, error: Exception) -> None:
        try:
            self.send(Returned(number, None, error))
        except Exception:
            # An error of a library, which may hold anything.
            self.send(Returned(number, None, Unavailable(repr(error))))

    def _return(self, message: Returned) -> None:
        # It may have been cancelled.
        future = self._calls.pop(message.number, None)
        if future is None or future.done():
            return
        if message.error is None:
            future.set_result(message.value)
        else:
            future.set_exception(message.error)


class Background:
    """Tasks that nobody awaits. The event loop itself does not keep them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
