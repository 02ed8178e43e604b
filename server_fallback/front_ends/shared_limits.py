"""The limits of clients over all front ends: the main process counts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from ..api.keys import ApiKey
from ..api.limiter import Admitted
from .link import Link
from .messages import Admit, Release, TakeAnswers, TakeBody


class SharedLimits:
    """Implements `Limits`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count()
        self.running = 0
        self.body_bytes = 0

    @asynccontextmanager
    async def admit(self, client: str, key: ApiKey | None) -> AsyncGenerator[Admitted]:
        request = next(self._numbers)
        try:
            headers = await self._link.call(lambda call: Admit(call, request, client, key))
            admission = SharedAdmission(self, self._link, request, headers)
            self.running += 1
            try:
                yield admission
            finally:
                self.running -= 1
                self.body_bytes -= admission.held_bytes
        finally:
            # The main process may have admitted a request that was cancelled before it knew.
            self._link.send(Release(request))


class SharedAdmission:
    """Implements `Admitted`."""

    def __init__(self, limits: SharedLimits, link: Link, request: int, headers: Mapping[str, str]) -> None:
        self._limits, self._link, self._request = limits, link, request
        self.headers = headers
        self.held_bytes = 0

    async def answers(self, count: int, capacity: int, param: str = "n") -> None:
        self.headers = await self._link.call(lambda call: TakeAnswers(call, self._request, count, capacity, param))

    async def body(self, size: int) -> None:
        await self._link.call(lambda call: TakeBody(call, self._request, size))
        self.held_bytes += size
        self._limits.body_bytes += size
