"""Exchange: one request and its answer, from the first header to the last byte. The gate creates it, and the routes
fill it in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive

from ..executors.executor import Executor
from ..schema.pipeline import StepTime
from .addresses import client_of
from .errors import ApiError, WriteError, openai_error
from .keys import ApiKey
from .limiter import Admitted

TIMEOUT_HEADER = "X-Request-Timeout-Ms"


async def never_gone() -> Message:
    """Of a client whose end cancels the exchange."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


@dataclass(slots=True)
class Exchange:
    """``arrived`` and ``deadline`` are times of `time.monotonic`. ``passed_on`` are headers for other servers that help
    to answer.

    ``log`` holds the extra fields of the request's line in the log; it must not contain text of a prompt or an answer.
    ``steps`` are those of a pipeline with their starts. ``answer_headers`` are added to the answer. ``held`` is
    released when the exchange is over. ``address`` is the sender's IP address. ``admission`` is None until the request
    is admitted, and for routes that need no slot. ``using`` are the models that stay loaded for it, by name.
    ``confirmed`` and ``prefill_from`` are those of `Call`. ``write_error`` has the form of the API that the address
    belongs to. ``receive`` is the connection's, which reports the client's end once the body has been read.
    """

    request_id: str
    passed_on: dict[str, str]
    address: str = ""
    write_error: WriteError = openai_error
    arrived: float = field(default_factory=time.monotonic)
    deadline: float = float("inf")
    confirmed: str | None = None
    prefill_from: str | None = None
    key: ApiKey | None = None
    admission: Admitted | None = None
    log: dict[str, object] = field(default_factory=dict)
    steps: list[tuple[StepTime, float]] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    using: dict[str, Executor] = field(default_factory=dict)
    receive: Receive = never_gone

    @property
    def client(self) -> str:
        """The sender, in the form of `Call.client`."""
        return f"key {self.key.name}" if self.key is not None else f"address {client_of(self.address)}"

    def set_deadline(self, headers: Mapping[str, str], longest_seconds: float) -> None:
        """Raises ApiError if the header is not a number of milliseconds."""
        seconds = longest_seconds
        requested = headers.get(TIMEOUT_HEADER)
        if requested is not None:
            if not (requested.isascii() and requested.isdigit() and 0 < len(requested) <= 12 and int(requested) > 0):
                raise ApiError(
                    400,
                    f"the header {TIMEOUT_HEADER} must be an integer number of milliseconds above 0",
                    "invalid_header",
                )
            seconds = min(seconds, int(requested) / 1000)
        self.deadline = self.arrived + seconds

    async def reserve(self, tokens: float) -> None:
        """Hold the most tokens that the answer may take with its prompt. Raises ApiError (429); see `Admission`."""
        assert self.admission is not None
        await self.admission.reserve(tokens)
        self.answer_headers.update(self.admission.headers)

    def priority(self, requested: int | None) -> int:
        """The requested priority, limited to that of the key."""
        if self.key is None:
            return requested or 0
        return self.key.priority if requested is None else min(requested, self.key.priority)


def exchange_of(request: HTTPConnection) -> Exchange:
    exchange = request.state.exchange
    assert isinstance(exchange, Exchange)
    return exchange
