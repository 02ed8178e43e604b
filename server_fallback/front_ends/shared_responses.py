"""Stored responses of several front ends: the main process has them, so that each front end reads those of all."""

from __future__ import annotations

from typing import Any

from ..api.stored_responses import OwnResponses, StoredResponse
from ..processes.connection import Connection
from ..processes.frames import Ask, ask


class SharedResponses:
    """Implements `StoredResponses` in a front end."""

    def __init__(self, link: Connection) -> None:
        self._link = link

    async def put(self, stored: StoredResponse) -> None:
        await self._link.call(ask(OwnResponses.put_now, stored))

    async def settle(self, stored: StoredResponse) -> bool:
        return await self._link.call(ask(OwnResponses.settle_now, stored))

    async def find(self, client: str, response_id: str) -> StoredResponse | None:
        return await self._link.call(ask(OwnResponses.find_now, client, response_id))

    async def chain(self, client: str, response_id: str) -> list[StoredResponse]:
        return await self._link.call(ask(OwnResponses.chain_now, client, response_id))

    async def drop(self, client: str, response_id: str) -> bool:
        return await self._link.call(ask(OwnResponses.drop_now, client, response_id))


class ResponsesOfFrontEnd:
    """What one front end asks of the responses, for the main process."""

    def __init__(self, responses: OwnResponses) -> None:
        self._responses = responses
        # Those that it computes, by client and id.
        self._running: set[tuple[str, str]] = set()

    def answer(self, message: Ask[Any]) -> Any:
        """Raises the errors of `StoredResponses`."""
        for stored in message.arguments:
            if isinstance(stored, StoredResponse) and stored.running:
                self._running.add((stored.client, stored.id))
            elif isinstance(stored, StoredResponse):
                self._running.discard((stored.client, stored.id))
        return message.of(self._responses)

    def fail_running(self, why: str) -> None:
        """The front end has ended, and with it the answers that it computed."""
        running, self._running = self._running, set()
        for client, response_id in running:
            found = self._responses.find_now(client, response_id)
            if found is not None:
                error = {"code": "server_error", "message": f"{why}; send the request again"}
                self._responses.settle_now(found.changed(status="failed", error=error))
