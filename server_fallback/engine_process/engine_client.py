"""The requests of a server to an engine in another process: the part that its owner and attached servers share."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError, NearfarError, Unavailable

from ..engine.encode_job import EncodeRequest
from ..engine.item_queue import ItemQueue
from ..engine.request import AnswerEnd, GeneratedToken, PromptLogprobs, TokenHandler, TokenRequest, items_of
from ..engine.stats import EngineStats
from ..processes.connection import Connection
from ..processes.heartbeat import Watch
from .mask_service import MaskService
from .messages import (
    Abandon,
    Beat,
    Encode,
    Generate,
    Listen,
    LoadAdapter,
    MaskTurns,
    Opened,
    OpenFailed,
    Stats,
    Step,
    UnloadAdapter,
)

NOTHING = EngineStats()


def is_supported() -> bool:
    """Whether this system can pass a socket to a process."""
    return os.name == "posix"


class EngineClient:
    """Belongs to the running event loop. `arrive` and `stats` are callable from any thread.

    A subclass connects the connection of `_connect`, and fails all answers when it has ended.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._opened: Opened | None = None
        self._opening: asyncio.Future[Opened] | None = None
        # The reason why requests are refused.
        self._refusal: NearfarError | None = None
        self._numbers = itertools.count()
        self._queues: dict[int, ItemQueue] = {}
        self._masks = MaskService(self._send)
        self._stats = NOTHING
        # While the process works, and while it is not closed.
        self._watch: Watch | None = None
        self._restarts = 0

    @property
    def context(self) -> int:
        assert self._opened is not None
        return self._opened.context

    @property
    def max_drafts(self) -> int:
        assert self._opened is not None
        return self._opened.max_drafts

    @property
    def device(self) -> str:
        assert self._opened is not None
        return self._opened.device

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        """See `TokenEngine.generate`."""
        return items_of(self.batches(request))

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
        """See `TokenEngine.batches`."""
        self._require_open()
        number, queue, constraint = next(self._numbers), ItemQueue(handle), request.constraint
        arrival = self.arrive() if request.arrival is None else request.arrival
        if constraint is not None:
            self._masks.begin(number, constraint)
        self._queues[number] = queue
        try:
            self._send(Generate(number, replace(request, constraint=None, arrival=arrival), constraint is not None))
            while True:
                items = await queue.next()
                yield items
                if isinstance(items[-1], AnswerEnd):
                    return
        finally:
            self._masks.end(number)
            if self._queues.pop(number, None) is not None:
                self._send(Abandon(number))

    def arrive(self) -> int:
        """See `TokenEngine.arrive`."""
        return time.monotonic_ns()

    async def encode(self, request: EncodeRequest) -> FloatArray:
        """See `EncoderEngine.encode`."""
        self._require_open()
        rows: FloatArray = await self._call(lambda call: Encode(call, request))
        return rows

    def stats(self) -> EngineStats:
        """A snapshot, at most 0.1 s old. ``failure`` is set while the process is silent, or is started again."""
        silent = 0.0 if self._watch is None else self._watch.silent_seconds
        failure = self._refusal
        if failure is None and self._watch is not None and not self._watch.is_ready:
            failure = Unavailable(f"the process of the engine has been silent for {silent:.0f} s")
        return replace(
            self._stats, failure=failure or self._stats.failure, restarts=self._restarts, silent_seconds=silent
        )

    # --- the connection ---

    async def _open(self, first_message: object) -> None:
        """Send the first message of a connection, and wait until the engine is open. Raises `OpenFailed`'s error, and
        DeviceError if the connection ends.
        """
        if self._connection is None:
            raise DeviceError("the process of the engine ended before it opened the model")
        self._opening = self._loop.create_future()
        self._send(first_message)
        self._opened = await self._opening
        self._watch = Watch(self._opened.hang_seconds, self._on_hang)

    def _on_hang(self) -> None:
        """The process is silent. The server that started it ends it, and starts it again."""

    def _on_message(self, message: object) -> None:
        match message:
            case Step(answers, token_ids, others):
                queues = self._queues
                for answer, token_id in zip(answers, token_ids, strict=True):
                    if (queue := queues.get(answer)) is not None:
                        queue.put(GeneratedToken(token_id))
                for answer, item in others:
                    ends = isinstance(item, AnswerEnd | BaseException)
                    queue = queues.pop(answer, None) if ends else queues.get(answer)
                    if queue is not None:
                        queue.put(item)
            case MaskTurns():
                self._masks.run(message)
            case Stats(stats):
                self._stats = stats
            case Beat(step_seconds):
                if self._watch is not None:
                    self._watch.beat(step_seconds)
            case Opened():
                assert self._opening is not None
                self._opening.set_result(message)
            case OpenFailed(failure):
                assert self._opening is not None
                self._opening.set_exception(failure)
            case _:
                raise TypeError(f"a server does not know the message {message!r}")

    def _fail_all(self, failure: NearfarError) -> None:
        """Fail all answers: the connection has ended."""
        self._connection = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(DeviceError("the process of the engine ended while it opened the model"))
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.put(failure)

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def _call(self, message: Callable[[int], Encode | Listen | LoadAdapter | UnloadAdapter]) -> Any:
        if self._connection is None:
            raise process_failed()
        return await self._connection.call(message, Abandon)

    def _connect(self) -> Connection:
        """A new connection, which is not connected yet."""
        self._connection = Connection(self._on_message, self._on_end, self._numbers)
        return self._connection

    def _on_end(self) -> NearfarError:
        """The connection has ended. A subclass calls `_fail_all` with the error that it returns."""
        raise NotImplementedError

    def _send(self, message: object) -> None:
        if self._connection is not None:
            self._connection.send(message)


def process_failed(what: str = "failed") -> DeviceError:
    """The error of the answers of a process that crashed, or was ended because it hung."""
    return DeviceError(f"the process of the engine {what} and is started again; send the request again")


def process_restarts() -> Unavailable:
    """The reason why requests are refused until the process runs again."""
    return Unavailable("the process of the engine failed and is being started again; try again later")


def engine_closed() -> Unavailable:
    """The error of answers when the engine is closed."""
    return Unavailable("the engine was closed before the answer was complete; try again later")
