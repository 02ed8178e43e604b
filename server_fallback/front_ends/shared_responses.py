"""Stored responses of several front ends: the main process has them, so that each front end reads those of all."""

from __future__ import annotations

from ..api.stored_responses import OwnResponses, StoredResponse
from ..processes.connection import Connection
from .messages import DropResponse, FindResponse, PutResponse, ResponseCall, ResponseChain, SettleResponse


class SharedResponses:
    """Implements `StoredResponses` in a front end."""

    def __init__(self, link: Connection) -> None:
        self._link = link

    async def put(self, stored: StoredResponse) -> None:
        await self._link.call(PutResponse(stored))

    async def settle(self, stored: StoredResponse) -> bool:
        settled: bool = await self._link.call(SettleResponse(stored))
        return settled

    async def find(self, client: str, response_id: str) -> StoredResponse | None:
        found: StoredResponse | None = await self._link.call(FindResponse(client, response_id))
        return found

    async def chain(self, client: str, response_id: str) -> list[StoredResponse]:
        found: list[StoredResponse] = await self._link.call(ResponseChain(client, response_id))
        return found

    async def drop(self, client: str, response_id: str) -> bool:
        dropped: bool = await self._link.call(DropResponse(client, response_id))
        return dropped


class ResponsesOfFrontEnd:
    """What one front end asks of the responses, for the main process."""

    def __init__(self, responses: OwnResponses) -> None:
        self._responses = responses
        # Those that it computes, by client and id.
        self._running: set[tuple[str, str]] = set()

    def answer(self, message: ResponseCall) -> object:
        """Raises the errors of `StoredResponses`."""
        responses = self._responses
        match message:
            case PutResponse(stored):
                if stored.running:
                    self._running.add((stored.client, stored.id))
                responses.put_now(stored)
                return None
            case SettleResponse(stored):
                self._running.discard((stored.client, stored.id))
                return responses.settle_now(stored)
            case FindResponse(client, response_id):
                return responses.find_now(client, response_id)
            case ResponseChain(client, response_id):
                return responses.chain_now(client, response_id)
            case DropResponse(client, response_id):
                return responses.drop_now(client, response_id)

    def fail_running(self, why: str) -> None:
        """The front end has ended, and with it the answers that it computed."""
        running, self._running = self._running, set()
        for client, response_id in running:
            found = self._responses.find_now(client, response_id)
            if found is not None:
                error = {"code": "server_error", "message": f"{why}; send the request again"}
                self._responses.settle_now(found.changed(status="failed", error=error))
