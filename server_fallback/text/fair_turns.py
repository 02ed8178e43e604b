"""Fair turns: one request after another uses something that only one can use, shared fairly between clients.

Each client has a queue. The next turn goes to the client that has used the least time, counted from when it began to wait
(start-time fair queueing, Goyal, Vin and Cheng 1996): a client that asks for the first time waits for the running turn only, however many
requests of others wait. Who leaves the queue costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from nearfar.compiler.errors import QueueFull

RETRY_SECONDS = 5.0


class FairTurns:
    """At most ``most_waiting`` requests wait, and ``most_of_one`` of one client. ``name`` says for what. Used from one event loop."""

    def __init__(self, name: str, most_waiting: int, most_of_one: int, clock: Callable[[], float] = monotonic) -> None:
        self._name, self._most_waiting, self._most_of_one, self._clock = name, most_waiting, most_of_one, clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # Virtual time, in seconds of use: of the last turn that began, of each waiting client's next turn, of each client's last end.
        self._now = 0.0
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._busy = False

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Inside, nobody else has a turn. Raises QueueFull."""
        start = await self._wait(client)
        began = self._clock()
        try:
            yield
        finally:
            self._ends[client] = start + self._clock() - began
            if client in self._waiting:
                self._starts[client] = self._ends[client]
            self._next()

    @property
    def waiting(self) -> bool:
        """Whether any request waits."""
        return bool(self._waiting)

    async def _wait(self, client: str) -> float:
        """The virtual time at which the client's turn begins."""
        if not self._busy:
            self._busy = True
            self._now = max(self._now, self._ends.get(client, 0.0))
            return self._now
        queue = self._waiting.get(client, deque())
        if len(queue) >= self._most_of_one or sum(map(len, self._waiting.values())) >= self._most_waiting:
            raise QueueFull(
                f"too many requests wait for {self._name}; try again later", retry_after_seconds=RETRY_SECONDS
            )
        if not queue:
            self._waiting[client] = queue
            self._starts[client] = max(self._now, self._ends.get(client, 0.0))
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted in queue:
                queue.remove(granted)
                self._forget_if_empty(client)
            elif not granted.cancelled():
                # It was this one's turn already.
                self._next()
            raise
        # Only the end of this turn changes it.
        return self._now

    def _next(self) -> None:
        """Give the next turn."""
        # What ended before now no longer counts.
        self._ends = {client: end for client, end in self._ends.items() if end > self._now}
        while self._waiting:
            client = min(self._waiting, key=self._starts.__getitem__)
            start = self._starts[client]
            granted = self._waiting[client].popleft()
            self._forget_if_empty(client)
            # A request that was cancelled a moment ago is still in the queue.
            if not granted.cancelled():
                self._now = max(self._now, start)
                granted.set_result(None)
                return
        self._busy = False

    def _forget_if_empty(self, client: str) -> None:
        if client in self._waiting and not self._waiting[client]:
            del self._waiting[client]
            del self._starts[client]
