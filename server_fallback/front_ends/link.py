"""A front end's link to the main process: calls with results, and messages without."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

from nearfar.compiler.errors import Unavailable

from ..api.drain import SHUTTING_DOWN
from ..engine_process.connection import Connection
from .messages import FromFrontEnd, Returned


class Link:
    """Belongs to the running event loop. ``on_message`` receives all messages except the results of calls; ``on_end``
    is called when the main process has ended.
    """

    def __init__(self, on_message: Callable[[object], None], on_end: Callable[[], None]) -> None:
        self._connection = Connection(self._on_message, self._on_connection_end)
        self._on_other_message, self._on_end = on_message, on_end
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._ended = False

    async def connect(self, connected: socket.socket) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self._connection, sock=connected)

    async def call(self, message: Callable[[int], FromFrontEnd]) -> Any:
        """The result of a message with the number of a call. Raises the error of the main process, and Unavailable if
        that has ended.
        """
        if self._ended:
            raise Unavailable(SHUTTING_DOWN)
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._connection.send(message(number))
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    def send(self, message: FromFrontEnd) -> None:
        self._connection.send(message)

    async def close(self) -> None:
        await self._connection.close()

    def _on_message(self, message: object) -> None:
        if not isinstance(message, Returned):
            self._on_other_message(message)
            return
        future = self._calls.get(message.call)
        if future is None or future.done():
            return
        if message.error is None:
            future.set_result(message.value)
        else:
            future.set_exception(message.error)

    def _on_connection_end(self) -> None:
        self._ended = True
        for future in self._calls.values():
            if not future.done():
                future.set_exception(Unavailable(SHUTTING_DOWN))
        self._on_end()
