"""Fair turns: requests use an exclusive resource one after another, shared fairly between clients.

Each client has a queue. The next turn goes to the client that has used the least time, counted from when it began to
wait (start-time fair queueing, Goyal, Vin and Cheng 1996). A new client therefore waits only for the running turn,
however many requests of other clients wait. A request that leaves the queue costs nothing. How many requests a client
may have at once is limited in one place, `api/limiter.py`, and not here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic


class FairTurns:
    """Used from one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # Virtual times, in seconds of use: the start of the latest turn, the start of each waiting client's next turn,
        # and the end of each client's last turn.
        self._now = 0.0
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._busy = False

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Inside the context, no other request has a turn."""
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
                # The turn was already granted to this request.
                self._next()
            raise
        # Only the end of this turn changes this value.
        return self._now

    def _next(self) -> None:
        """Grant the next turn."""
        # An end before the current virtual time no longer counts.
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
