"""Nodes: the other machines of a model, as its first machine sees them. Each runs `nearfar node`, which starts its part
of vLLM when all are connected, and ends it when one of them has failed.

vLLM itself waits forever for a dead node, so they are watched here: a node that is silent for `SILENCE_SECONDS`, or
whose vLLM ends, is a failure of the whole model, which then starts again when all nodes are back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nearfar.compiler.runtime.errors import RequestError, reason_of

from .node_link import MAX_LINE_BYTES, LinkLost, NodeLink


class Nodes:
    """Implements `Companions`. ``count`` is the number of machines with this one, whose rank is 0. ``command_of``
    returns the arguments of vLLM on the node of a rank.
    """

    def __init__(self, count: int, host: str, port: int, key: str, command_of: Callable[[int], Sequence[str]]) -> None:
        self._count, self._host, self.port, self._key, self._command_of = count, host, port, key, command_of
        self._links: dict[int, NodeLink] = {}
        self._changed = asyncio.Event()
        self._failure: asyncio.Future[str] | None = None
        self._server: asyncio.Server | None = None
        # The task of each connection; the links of those that have not joined are not in `_links`.
        self._tasks: dict[asyncio.Task[None], NodeLink] = {}

    @property
    def missing(self) -> list[int]:
        """The ranks of the nodes that are not connected."""
        return [rank for rank in range(1, self._count) if rank not in self._links]

    async def open(self) -> None:
        """Listen for nodes. Raises RequestError for an address that cannot be used."""
        try:
            self._server = await asyncio.start_server(self._connected, self._host, self.port, limit=MAX_LINE_BYTES)
        except OSError as error:
            raise RequestError(
                f"--node-address {self._host}:{self.port}: {reason_of(error)}; use an address of this machine"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Wait for all nodes, and start vLLM on each."""
        while self.missing:
            self._changed.clear()
            await self._changed.wait()
        self._failure = asyncio.get_running_loop().create_future()
        for rank, link in self._links.items():
            link.send({"start": list(self._command_of(rank))})

    async def failed(self) -> str:
        """Wait until a node has failed since the last start, and return the reason."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """End vLLM on all nodes."""
        for link in self._links.values():
            link.send({"stop": True})

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        running = dict(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        # A task that was cancelled before it started has not closed its link.
        for link in running.values():
            await link.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = NodeLink(reader, writer)
        task = asyncio.create_task(self._serve(link))
        self._tasks[task] = link
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, link: NodeLink) -> None:
        """One node, as long as it is connected."""
        rank: int | None = None
        try:
            joined = await link.admit(self._key)
            if joined not in self.missing:
                # A node that restarted is back before its old connection was found dead: the new one replaces it.
                if not 1 <= joined < self._count:
                    raise LinkLost(f"has the rank {joined}")
                await self._links[joined].close()
                self._fail(f"lost node {joined} ({link.peer}), which connected again")
            rank = joined
            self._links[rank] = link
            self._changed.set()
            while True:
                message = await link.receive()
                if "ended" in message:
                    self._fail(f"on node {rank} ({link.peer}) ended with status {message['ended']}")
        except LinkLost as lost:
            if rank is not None and self._links.get(rank) is link:
                self._fail(f"lost node {rank} ({link.peer}), which {lost}")
        finally:
            if rank is not None and self._links.get(rank) is link:
                del self._links[rank]
            await link.close()

    def _fail(self, reason: str) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)
