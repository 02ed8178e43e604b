"""An engine in another process, with the methods of `TokenEngine`. If the process crashes or its device fails, its
answers fail, and it is started again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from nearfar.compiler.errors import DeviceError, NearfarError, Unavailable
from nearfar.compiler.runtime.batch import FloatArray

from ..engine.config import EngineConfig
from ..engine.item_queue import ItemQueue
from ..engine.request import Completion, GeneratedToken, PromptLogprobs, TokenRequest
from ..engine.stats import EngineStats
from .connection import Connection
from .mask_service import MaskService
from .messages import (
    Abandon,
    Close,
    Embed,
    EngineRecipe,
    Generate,
    LoadAdapter,
    MaskTurns,
    Open,
    Opened,
    OpenFailed,
    Returned,
    Stats,
    Step,
    UnloadAdapter,
)

MAIN = "from nearfar.server_fallback.engine_process.process import main; main()"
# A crashed process is started again after this time, and after twice the time if it crashes again. After this many
# crashes with less than STEADY_SECONDS of work between them, it is given up.
FIRST_RESTART_SECONDS, MAX_CRASHES, STEADY_SECONDS = 0.5, 5, 60.0
# How long a process may take to end after its last answer.
EXIT_SECONDS = 15.0
NOTHING = EngineStats(0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0)


def is_supported() -> bool:
    """Whether this system can pass a socket to a process."""
    return os.name == "posix"


class RemoteEngine:
    """Belongs to the event loop on which `open` ran. `arrive` and `stats` are callable from any thread."""

    def __init__(self, recipe: EngineRecipe) -> None:
        self._recipe = recipe
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._opened: Opened | None = None
        self._opening: asyncio.Future[Opened] | None = None
        self._queues: dict[int, ItemQueue] = {}
        self._calls: dict[int, asyncio.Future[FloatArray | None]] = {}
        self._masks = MaskService(self._send)
        self._adapters: dict[str, Mapping[str, FloatArray]] = {}
        self._stats = NOTHING
        # Why requests are refused.
        self._refusal: NearfarError | None = None
        self._ended = asyncio.Event()
        self._closing = False
        self._restarting: asyncio.Task[None] | None = None
        self._crashes, self._opened_at = 0, 0.0

    @staticmethod
    async def open(recipe: EngineRecipe) -> RemoteEngine:
        """Start the process, and wait until its engine is open. Raises what the recipe raises, and DeviceError if the
        process ends.
        """
        engine = RemoteEngine(recipe)
        try:
            await engine._start()
        except BaseException:
            await engine.close()
            raise
        return engine

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

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def generate(
        self, request: TokenRequest
    ) -> AsyncGenerator[PromptLogprobs | GeneratedToken | Completion, None]:
        """See `TokenEngine.generate`."""
        async with aclosing(self.batches(request)) as batches:
            async for batch in batches:
                for item in batch:
                    yield item

    async def batches(
        self, request: TokenRequest
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | Completion], None]:
        """See `TokenEngine.batches`."""
        self._require_open()
        number, queue, constraint = next(self._numbers), ItemQueue(), request.constraint
        arrival = self.arrive() if request.arrival is None else request.arrival
        if constraint is not None:
            self._masks.begin(number, constraint)
        self._queues[number] = queue
        try:
            self._send(Generate(number, replace(request, constraint=None, arrival=arrival), constraint is not None))
            while True:
                items = await queue.next()
                yield items
                if isinstance(items[-1], Completion):
                    return
        finally:
            self._masks.end(number)
            if self._queues.pop(number, None) is not None:
                self._send(Abandon(number))

    def arrive(self) -> int:
        """See `TokenEngine.arrive`."""
        return time.monotonic_ns()

    async def embed(self, texts: Sequence[Sequence[int]]) -> FloatArray:
        """See `TokenEngine.embed`."""
        self._require_open()
        vectors = await self._call(lambda call: Embed(call, texts))
        assert vectors is not None
        return vectors

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None:
        """See `TokenEngine.load_adapter`."""
        self._require_open()
        await self._call(lambda call: LoadAdapter(call, name, states))
        self._adapters[name] = states

    async def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        self._require_open()
        await self._call(lambda call: UnloadAdapter(call, name))
        self._adapters.pop(name, None)

    def stats(self) -> EngineStats:
        """A snapshot, at most 0.1 s old. ``failure`` is set while the process is started again."""
        return self._stats if self._refusal is None else replace(self._stats, failure=self._refusal)

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:
        """See `TokenEngine.close`."""
        if not self._closing:
            self._closing = True
            self._refusal = reason or Unavailable("this model is being unloaded; try again later")
            if self._restarting is not None:
                self._restarting.cancel()
            self._send(Close(drain_seconds, reason))
        process = self._process
        if process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), drain_seconds + EXIT_SECONDS)
            await asyncio.to_thread(end, process)
        await asyncio.to_thread(self._masks.close)

    # --- the process ---

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", MAIN, str(theirs.fileno())]
        try:
            self._process = await asyncio.to_thread(
                # In a session of its own, a terminal's Ctrl-C reaches only the server.
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._ended.clear()
        connection = self._connection = Connection(self._on_message, self._on_end)
        await self._loop.create_unix_connection(lambda: connection, sock=ours)
        self._opening = self._loop.create_future()
        self._send(Open(self._recipe, EngineConfig().max_mask_wait_seconds))
        self._opened = await self._opening
        self._opened_at = time.monotonic()
        for name, states in self._adapters.items():
            await self._call(lambda call, name=name, states=states: LoadAdapter(call, name, states))  # type: ignore[misc]

    def _on_message(self, message: object) -> None:
        match message:
            case Step(answers, token_ids, others):
                queues = self._queues
                for answer, token_id in zip(answers, token_ids, strict=True):
                    if (queue := queues.get(answer)) is not None:
                        queue.put(GeneratedToken(token_id))
                for answer, item in others:
                    ends = isinstance(item, Completion | BaseException)
                    queue = queues.pop(answer, None) if ends else queues.get(answer)
                    if queue is not None:
                        queue.put(item)
            case MaskTurns():
                self._masks.run(message)
            case Stats(stats):
                self._stats = stats
            case Returned(call, value, error):
                future = self._calls.pop(call, None)
                if future is not None and not future.done():
                    if error is None:
                        future.set_result(value)
                    else:
                        future.set_exception(error)
            case Opened():
                assert self._opening is not None
                self._opening.set_result(message)
            case OpenFailed(failure):
                assert self._opening is not None
                self._opening.set_exception(failure)
            case _:
                raise TypeError(f"a server does not know the message {message!r}")

    def _on_end(self) -> None:
        """The process has ended: as requested, or by a crash."""
        self._ended.set()
        process, self._connection = self._process, None
        assert process is not None
        failure: NearfarError = Unavailable("the engine was closed before the answer was complete; try again later")
        if not self._closing:
            failure = DeviceError("the process of the engine failed and is started again; send the request again")
            self._refusal = Unavailable("the process of the engine failed and is being started again; try again later")
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(DeviceError("the process of the engine ended while it opened the model"))
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.put(failure)
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(failure)
        if not self._closing and self._opened is not None and self._restarting is None:
            self._restarting = asyncio.ensure_future(self._restart())

    async def _restart(self) -> None:
        """Start the process again until that succeeds or is given up."""
        if time.monotonic() - self._opened_at > STEADY_SECONDS:
            self._crashes = 0
        while True:
            assert self._process is not None
            status = await asyncio.to_thread(end, self._process)
            self._crashes += 1
            if self._crashes > MAX_CRASHES:
                self._refusal = Unavailable(
                    f"the process of the engine has failed {self._crashes} times and is not started again; its last "
                    f"status was {status}"
                )
                return
            await asyncio.sleep(FIRST_RESTART_SECONDS * 2 ** (self._crashes - 1))
            try:
                await self._start()
            except NearfarError:
                continue
            self._refusal = self._restarting = None
            return

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def _call(self, message: Callable[[int], Embed | LoadAdapter | UnloadAdapter]) -> FloatArray | None:
        call = next(self._numbers)
        future: asyncio.Future[FloatArray | None] = self._loop.create_future()
        self._calls[call] = future
        self._send(message(call))
        try:
            return await future
        finally:
            if self._calls.pop(call, None) is not None:
                self._send(Abandon(call))

    def _send(self, message: object) -> None:
        if self._connection is not None:
            self._connection.send(message)


def end(process: subprocess.Popen[bytes]) -> int:
    """End a process that should have ended, and return its status."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(0.5)
    process.kill()
    return process.wait()
