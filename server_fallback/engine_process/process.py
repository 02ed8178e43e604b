"""The process of an engine. It opens the engine that its server describes, and serves it until the connection ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from nearfar.compiler.errors import NearfarError, Unavailable

from ..engine.answer import Answer
from ..engine.item_queue import Item
from ..engine.request import Completion, GeneratedToken
from ..engine.stats import EngineStats
from ..engine.token_engine import TokenEngine
from .connection import Connection
from .messages import (
    Abandon,
    Close,
    Embed,
    Generate,
    LoadAdapter,
    Mask,
    Open,
    Opened,
    OpenFailed,
    Returned,
    Stats,
    Step,
    UnloadAdapter,
)
from .remote_masks import RemoteConstraint, RemoteMasks

STATS_SECONDS = 0.1
# A device that hangs must not keep the process once its server is gone.
STUCK_SECONDS = 10.0


def main() -> None:
    """The argument is the descriptor of a connected socket."""
    # A service manager sends these signals to all processes. The server closes this one after its last answers.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    asyncio.run(EngineServer().serve(socket.socket(fileno=int(sys.argv[1]))))
    # Threads of a device may not end.
    sys.stdout.flush()
    os._exit(0)


class EngineServer:
    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._connection = Connection(self._on_message, self._ended.set)
        self._engine: TokenEngine | None = None
        self._masks: RemoteMasks | None = None
        self._answers: dict[int, Answer] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._other_tasks: set[asyncio.Task[None]] = set()
        self._step = Step([], [], [])
        # The answers with other items in this step, which are not to be overtaken by tokens.
        self._with_others = set[int]()
        self._sent_stats: EngineStats | None = None

    async def serve(self, connected: socket.socket) -> None:
        """Return when the connection has ended, after `Close`, or when the engine has failed."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._connection, sock=connected)
        await self._ended.wait()
        timer = threading.Timer(STUCK_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()
        if self._engine is not None:
            await self._engine.close()
        await self._connection.close()

    # --- messages ---

    def _on_message(self, message: object) -> None:
        match message:
            case Generate():
                self._generate(message)
            case Mask():
                assert self._masks is not None
                self._masks.returned(message)
            case Abandon(answer):
                self._abandon(answer)
            case Open():
                self._run(self._open(message))
            case Close():
                self._run(self._close(message))
            case Embed() | LoadAdapter() | UnloadAdapter():
                task = self._calls[message.call] = asyncio.ensure_future(self._call(message))
                task.add_done_callback(lambda _: self._calls.pop(message.call))
            case _:
                raise TypeError(f"an engine does not know the message {message!r}")

    async def _open(self, message: Open) -> None:
        loop = asyncio.get_running_loop()
        self._masks = RemoteMasks(message.max_mask_wait_seconds, loop, self._connection.send)
        try:
            engine = await asyncio.to_thread(message.recipe.open, self._masks)
        except Exception as error:
            self._connection.send(OpenFailed(error if isinstance(error, NearfarError) else Unavailable(repr(error))))
            return
        self._engine = engine
        self._send_stats()
        self._connection.send(Opened(engine.context, engine.max_drafts, engine.device))

    async def _close(self, message: Close) -> None:
        if self._engine is not None:
            await self._engine.close(message.drain_seconds, message.reason)
        self._flush()
        self._ended.set()

    def _generate(self, message: Generate) -> None:
        assert self._engine is not None
        request, number = message.request, message.answer
        if message.is_constrained:
            request = replace(request, constraint=RemoteConstraint(number))
        try:
            self._answers[number] = self._engine.begin(request, partial(self._put, number))
        except NearfarError as error:
            self._put(number, error)

    def _abandon(self, number: int) -> None:
        answer, call = self._answers.pop(number, None), self._calls.get(number)
        if answer is not None:
            assert self._engine is not None
            self._engine.abandon(answer)
        if call is not None:
            call.cancel()

    async def _call(self, message: Embed | LoadAdapter | UnloadAdapter) -> None:
        assert self._engine is not None
        value = None
        try:
            match message:
                case Embed():
                    value = await self._engine.embed(message.texts)
                case LoadAdapter():
                    await self._engine.load_adapter(message.name, message.states)
                case UnloadAdapter():
                    await self._engine.unload_adapter(message.name)
        except NearfarError as error:
            self._connection.send(Returned(message.call, None, error))
        else:
            self._connection.send(Returned(message.call, value, None))

    # --- items ---

    def _put(self, number: int, item: Item) -> None:
        """All items that the engine delivers in one turn go into one message."""
        step = self._step
        if not step.answers and not step.others:
            asyncio.get_running_loop().call_soon(self._flush)
        if isinstance(item, GeneratedToken) and item.logprob is None and number not in self._with_others:
            step.answers.append(number)
            step.token_ids.append(item.token_id)
        else:
            step.others.append((number, item))
            self._with_others.add(number)
            if isinstance(item, Completion | BaseException):
                self._answers.pop(number, None)

    def _flush(self) -> None:
        step, self._step = self._step, Step([], [], [])
        self._with_others.clear()
        if step.answers or step.others:
            self._connection.send(step)

    def _send_stats(self) -> None:
        """Send the engine's figures whenever they have changed."""
        assert self._engine is not None
        stats = self._engine.stats()
        if stats != self._sent_stats:
            self._sent_stats = stats
            self._connection.send(Stats(stats))
        if stats.failure is not None:
            # The engine has given up its device. Another process may be able to use it.
            self._ended.set()
        asyncio.get_running_loop().call_later(STATS_SECONDS, self._send_stats)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._other_tasks.add(task)
        task.add_done_callback(self._other_tasks.discard)
