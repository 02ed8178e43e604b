"""The number of open connections, in total and per client."""

from __future__ import annotations

import asyncio
from typing import cast

from nearfar.server_fallback.api.addresses import Addresses
from nearfar.server_fallback.api.connections import Connections

A, B, PROXY = "192.0.2.1", "192.0.2.2", "10.0.0.1"


class Wire:
    """A transport."""

    def __init__(self, *, idle: bool) -> None:
        self.idle, self.aborted = idle, False

    def abort(self) -> None:
        self.aborted = True


def opened(connections: Connections, address: str, *, idle: bool = True) -> tuple[Wire, bool]:
    wire = Wire(idle=idle)
    return wire, connections.admit(cast(asyncio.Transport, wire), address, lambda: wire.idle)


def test_the_oldest_idle_connection_of_a_client_makes_room_for_its_next() -> None:
    connections = Connections(10, 2, Addresses())
    busy, _ = opened(connections, A, idle=False)
    idle, _ = opened(connections, A)
    other, _ = opened(connections, B)
    assert opened(connections, A)[1]
    assert (busy.aborted, idle.aborted, other.aborted) == (False, True, False)
    # The closed connection no longer counts, even if its end is reported later.
    connections.release(cast(asyncio.Transport, idle))
    assert len(connections) == 3


def test_a_client_whose_connections_are_all_busy_gets_no_more_and_others_do() -> None:
    connections = Connections(10, 2, Addresses())
    for _ in range(2):
        opened(connections, A, idle=False)
    assert not opened(connections, A)[1]
    assert opened(connections, B)[1]
    assert len(connections) == 3


def test_when_all_are_taken_the_client_with_the_most_makes_room() -> None:
    connections = Connections(4, 4, Addresses())
    single, _ = opened(connections, B)
    many = [opened(connections, A)[0] for _ in range(3)]
    assert opened(connections, "192.0.2.3")[1]
    assert [wire.aborted for wire in (single, *many)] == [False, True, False, False]
    assert len(connections) == 4


def test_a_trusted_proxy_has_the_connections_of_all_its_clients() -> None:
    connections = Connections(10, 2, Addresses(["10.0.0.0/8"]))
    assert all(opened(connections, PROXY, idle=False)[1] for _ in range(5))


def test_a_connection_that_became_a_websocket_is_never_idle() -> None:
    connections = Connections(10, 1, Addresses())
    socket, _ = opened(connections, A)
    connections.keep(cast(asyncio.Transport, socket))
    assert not opened(connections, A)[1]
    connections.release(cast(asyncio.Transport, socket))
    assert opened(connections, A)[1]
