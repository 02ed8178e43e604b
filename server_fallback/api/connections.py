"""Connections: the open sockets of a server. One client may hold a share of them. When there are too many, the server
closes idle ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .addresses import Addresses, client_of

# For the listener, logs, weights, pipes and connections to other servers.
RESERVED_FILES = 128


class Connections:
    """At most ``most`` are open at once, and at most ``most_of_client`` from one client; trusted proxies are exempt
    from the latter.
    """

    def __init__(self, most: int, most_of_client: int, addresses: Addresses) -> None:
        self.set(most, most_of_client)
        self._addresses = addresses
        # By client, the oldest connection first, each with a function that returns whether the connection is idle.
        self._idle: dict[str, dict[asyncio.Transport, Callable[[], bool]]] = {}
        self._clients: dict[asyncio.Transport, str] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def set(self, most: int, most_of_client: int) -> None:
        """Other limits for connections from now on."""
        self._most, self._most_of_client = most, most_of_client

    def admit(self, transport: asyncio.Transport, address: str, idle: Callable[[], bool]) -> bool:
        """Count a new connection until `release`, if necessary by closing an idle one. False if there is no room: then
        close it.
        """
        client = client_of(address)
        own = self._idle.get(client, {})
        if len(own) >= self._most_of_client and not self._addresses.is_proxy(address):
            if not self._close_idle(client):
                return False
        elif len(self._clients) >= self._most:
            largest = sorted(self._idle, key=lambda each: len(self._idle[each]), reverse=True)
            if not any(self._close_idle(each) for each in largest):
                return False
        self._idle.setdefault(client, {})[transport] = idle
        self._clients[transport] = client
        return True

    def keep(self, transport: asyncio.Transport) -> None:
        """Mark a connection that became a WebSocket: it is never idle from now on."""
        if transport in self._clients:
            self._idle[self._clients[transport]][transport] = lambda: False

    def release(self, transport: asyncio.Transport) -> None:
        """Remove a closed connection. Releasing it twice is allowed."""
        client = self._clients.pop(transport, None)
        if client is not None:
            del self._idle[client][transport]
            if not self._idle[client]:
                del self._idle[client]

    def _close_idle(self, client: str) -> bool:
        """Close the oldest idle connection of a client."""
        oldest = next((transport for transport, idle in self._idle[client].items() if idle()), None)
        if oldest is None:
            return False
        self.release(oldest)
        oldest.abort()
        return True
