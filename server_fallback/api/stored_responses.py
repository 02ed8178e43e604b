"""The stored responses of /v1/responses, which their clients read again and continue.

They are in memory, and bounded in bytes: the client with the most bytes loses the one that it has not used for the
longest time, so that no client takes the room of another.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .errors import ApiError

# What a response takes beside its texts.
OVERHEAD_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """``response`` is the JSON of a `ResponseObject`, and ``items`` that of the request's own items. It continues the
    response ``previous``. Another client than ``client`` cannot read it. ``running``: its answer is not there yet.
    """

    client: str
    id: str
    response: bytes
    items: bytes
    previous: str | None = None
    running: bool = False

    @property
    def size(self) -> int:
        return OVERHEAD_BYTES + len(self.response) + len(self.items)

    def changed(self, **fields: Any) -> StoredResponse:
        """With other fields of its JSON, and no longer running."""
        return replace(self, response=json.dumps(json.loads(self.response) | fields).encode(), running=False)


class StoredResponses(Protocol):
    """Those of all processes of a server."""

    async def put(self, stored: StoredResponse) -> None:
        """Add a response."""

    async def settle(self, stored: StoredResponse) -> bool:
        """Replace one that is running. False if it is not, because it was cancelled, deleted or dropped."""

    async def find(self, client: str, response_id: str) -> StoredResponse | None: ...

    async def chain(self, client: str, response_id: str) -> list[StoredResponse]:
        """The response and those that it continues, the oldest first. Raises ApiError (404) if one is not stored."""

    async def drop(self, client: str, response_id: str) -> bool:
        """False if it is not stored."""


class OwnResponses:
    """Implements `StoredResponses` in this process. ``max_bytes``: of all responses."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Those of each client, the one that was not used for the longest time first.
        self._stored: dict[str, dict[str, StoredResponse]] = {}
        self._sizes = Counter[str]()

    async def put(self, stored: StoredResponse) -> None:
        self.put_now(stored)

    async def settle(self, stored: StoredResponse) -> bool:
        return self.settle_now(stored)

    async def find(self, client: str, response_id: str) -> StoredResponse | None:
        return self.find_now(client, response_id)

    async def chain(self, client: str, response_id: str) -> list[StoredResponse]:
        return self.chain_now(client, response_id)

    async def drop(self, client: str, response_id: str) -> bool:
        return self.drop_now(client, response_id)

    def put_now(self, stored: StoredResponse) -> None:
        self.drop_now(stored.client, stored.id)
        self._stored.setdefault(stored.client, {})[stored.id] = stored
        self._sizes[stored.client] += stored.size
        while self._sizes.total() > self._max_bytes:
            [(largest, _)] = self._sizes.most_common(1)
            own = self._stored[largest]
            self.drop_now(largest, next((name for name, each in own.items() if not each.running), next(iter(own))))

    def settle_now(self, stored: StoredResponse) -> bool:
        found = self.find_now(stored.client, stored.id)
        if found is None or not found.running:
            return False
        self.put_now(stored)
        return True

    def find_now(self, client: str, response_id: str) -> StoredResponse | None:
        own = self._stored.get(client, {})
        found = own.pop(response_id, None)
        if found is not None:
            own[response_id] = found
        return found

    def chain_now(self, client: str, response_id: str) -> list[StoredResponse]:
        found = list[StoredResponse]()
        wanted: str | None = response_id
        while wanted is not None:
            stored = self._stored.get(client, {}).get(wanted)
            if stored is None:
                raise not_stored(wanted, "previous_response_id", "previous_response_not_found")
            found.append(stored)
            wanted = stored.previous
        for stored in reversed(found):
            # All of them are used now, the last one at last.
            self.find_now(client, stored.id)
        return found[::-1]

    def drop_now(self, client: str, response_id: str) -> bool:
        own = self._stored.get(client, {})
        dropped = own.pop(response_id, None)
        if dropped is None:
            return False
        self._sizes[client] -= dropped.size
        if not own:
            del self._stored[client], self._sizes[client]
        return True


def not_stored(response_id: str, param: str | None = None, code: str = "response_not_found") -> ApiError:
    message = (
        f"the response {response_id[:64]!r} is not stored here: it may have been deleted, created with store=false or "
        "by another client, or have made room for others; send the whole conversation as input"
    )
    return ApiError(404, message, code, param)
