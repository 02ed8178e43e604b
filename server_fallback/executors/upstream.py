"""Upstream: one OpenAI-compatible server over HTTP. It sends JSON bodies, returns JSON objects, and turns every failure
into one of our errors.

The error shows whether a failed request may be sent to another server: Unavailable means that this one has not answered
it.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

import httpx

from nearfar.compiler.runtime.errors import (
    DeadlineExceeded,
    DeviceError,
    NearfarError,
    QueueFull,
    RequestError,
    Unavailable,
)

from ..schema.fold import cut_off
from ..schema.pages import PREFILL_HEADER
from .circuit import Circuit
from .dialect import MODELS
from .executor import Call
from .http_transport import BODY, Body, Transport, tls_failure, transport_for, trusting
from .refusal import SHOWN_CHARACTERS, refusal, streamed_error
from .relay import Relay
from .sglang import ROUTING_KEY
from .upstream_answers import AFTER_END_SECONDS

PASSED_ON = ("traceparent", "tracestate", PREFILL_HEADER, ROUTING_KEY)
CONNECT_TIMEOUT_SECONDS = 5.0
CHECK_TIMEOUT_SECONDS = 5.0
# A server that accepts a request and then sends nothing for this long has lost it.
READ_TIMEOUT_SECONDS = 600.0
# Before the path of a Unix socket.
UNIX = "unix:"
# 2,048 vectors of 4,096 numbers as text have 170 MB.
MAX_ANSWER_BYTES = 256 << 20
# Only the beginning of an error's message is shown.
MAX_ERROR_BYTES = 1 << 20
# The escape of half of a surrogate pair.
HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")

T = TypeVar("T")


@dataclass(eq=False)
class Upstream:
    """``url`` is the server's root, without /v1, or unix:PATH. ``any_request_id``: it accepts request ids that are not
    UUIDs. ``outstanding`` counts our running requests on it. ``observe_headers`` is called with the headers of each
    answer, also of errors; it must not raise. ``health`` is the path that shows whether it works.
    """

    url: str
    client: httpx.AsyncClient = field(repr=False)
    any_request_id: bool = False
    health: str = MODELS
    circuit: Circuit = field(default_factory=Circuit)
    outstanding: int = 0
    observe_headers: Callable[[Mapping[str, str]], None] | None = field(default=None, repr=False)

    async def answer(self, path: str, body: Mapping[str, Any], call: Call, relay: Relay[Any]) -> None:
        """Send a streamed answer through ``relay``. Once all its choices have ended, only the usage matters: it is
        awaited for `AFTER_END_SECONDS`, and failures are ignored.

        Raises RequestError if the server rejects the request, QueueFull and Unavailable if it did not answer (after the
        first chunk: if the connection broke, or a choice has no end), DeadlineExceeded, and DeviceError if it failed or
        its answer is not in OpenAI's form.
        """
        # The size of a part that was relayed and after which this task has more to do than to read on.
        relayed = 0

        def handle(part: bytes) -> bool:
            nonlocal relayed
            if relay.ended or not relay.output.has_room:
                return False
            relay.add(part)
            relayed = len(part) if relay.ended or relay.is_over else 0
            return not relayed

        try:
            async with self.sent("POST", path, body, call) as response:
                read, deadline = reader_of(response, handle), call.deadline
                while not relay.is_over:
                    if relay.ended:
                        deadline = min(deadline or inf, monotonic() + AFTER_END_SECONDS)
                    if not (part := await read(deadline)):
                        raise self._stopped()
                    # More may have arrived before this task ran again.
                    part, relayed = part[relayed:], 0
                    if part and not relay.is_over:
                        relay.add(part)
                    await relay.output.room()
                if relay.failure is not None:
                    raise relay.failure
        except NearfarError:
            if not relay.ended:
                raise
        if relay.is_cut_off:
            # A server that aborts its work may complete the stream.
            raise cut_off()
        relay.end()

    def event_object(self, data: str) -> dict[str, Any]:
        """Raises the error that an event reports, and DeviceError for one that is not an object."""
        value = self._as_object(self._value(data))
        if isinstance(value.get("error"), dict):
            raise streamed_error(self.url, value["error"])
        return value

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None, call: Call) -> dict[str, Any]:
        """The object in the server's answer. Raises the errors of `sent`, and DeviceError for another value."""
        return self._as_object(await self.value(method, path, body, call))

    async def value(self, method: str, path: str, body: Mapping[str, Any] | None, call: Call) -> Any:
        """The JSON value in the server's answer. Raises the errors of `sent`, and DeviceError for other data."""
        async with self.sent(method, path, body, call) as response:
            answer = await before(call.deadline, beginning_of(response, MAX_ANSWER_BYTES))
            if len(answer) > MAX_ANSWER_BYTES:
                too_long = f"{self.url}: the answer has more than {MAX_ANSWER_BYTES >> 20} MB"
                raise DeviceError(too_long, upstream=self.url)
            return self._value(answer.decode(errors="replace"))

    async def check(self) -> str | None:
        """Request ``health`` and report the outcome to the circuit. Returns why it failed.

        A timeout counts only while the server has none of our requests, because some servers answer one request at a
        time.
        """
        try:
            async with self.client.stream(
                "GET", f"{self._root}{self.health}", timeout=CHECK_TIMEOUT_SECONDS
            ) as response:
                await beginning_of(response, MAX_ERROR_BYTES)
        except httpx.TimeoutException:
            if self.outstanding > 0:
                return None
            self.circuit.failed()
            return f"it sent nothing for {CHECK_TIMEOUT_SECONDS:.0f} seconds; check that it is running"
        except httpx.HTTPError as error:
            self.circuit.failed(certain=isinstance(error, httpx.ConnectError))
            return reason(error)
        if response.status_code >= 500:
            self.circuit.failed()
            return f"it answers {self.health} with {response.status_code}"
        self.circuit.succeeded()
        return None

    async def close(self) -> None:
        await self.client.aclose()

    @property
    def is_here(self) -> bool:
        """At a Unix socket, and so on this machine."""
        return self.url.startswith(UNIX)

    @property
    def _root(self) -> str:
        """Of requests. A server at a Unix socket has no host; it accepts this machine's."""
        return "http://localhost" if self.is_here else self.url

    @asynccontextmanager
    async def sent(
        self, method: str, path: str, body: Mapping[str, Any] | None, call: Call
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request, once its status line and headers have arrived and show success. The outcome is
        reported to the circuit.
        """
        if self.client.is_closed:
            raise Unavailable("this model is being unloaded; try again later")
        headers = {name: call.headers[name] for name in PASSED_ON if name in call.headers}
        headers["X-Request-Id"] = call.request_id if self.any_request_id else as_uuid(call.request_id)
        if call.deadline is not None:
            # Our own server reads this header; for the others, the deadline closes the connection.
            headers["X-Request-Timeout-Ms"] = str(max(1, round((call.deadline - monotonic()) * 1000)))
        request = self.client.build_request(method, f"{self._root}{path}", json=body, headers=headers)
        self.outstanding += 1
        self.circuit.begin()
        response: httpx.Response | None = None
        try:
            response = await before(call.deadline, self.client.send(request, stream=True))
            if self.observe_headers is not None:
                self.observe_headers(response.headers)
            if not response.is_success:
                answer = await before(call.deadline, beginning_of(response, MAX_ERROR_BYTES))
                raise refusal(self.url, response, answer.decode(errors="replace"))
            self.circuit.succeeded()
            yield response
        except httpx.HTTPError as error:
            self.circuit.failed(certain=isinstance(error, httpx.ConnectError))
            raise Unavailable(f"{self.url}: {reason(error)}", upstream=self.url) from error
        except (QueueFull, DeadlineExceeded):
            # The server may be healthy: it is busy, or the client's deadline is short.
            raise
        except Unavailable:
            self.circuit.failed()
            raise
        finally:
            # For a trial request that was cancelled, or rejected because of its content.
            self.circuit.ended()
            self.outstanding -= 1
            if response is not None:
                await response.aclose()

    def _stopped(self) -> Unavailable:
        return Unavailable(f"{self.url}: its answer stopped before the end; send the request again", upstream=self.url)

    def _value(self, data: str) -> Any:
        try:
            value = json.loads(data)
            if HALF_PAIR.search(data):
                # Raises UnicodeEncodeError if it really is only half of a pair, which our answers cannot contain.
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise self._unexpected(data) from None
        return value

    def _as_object(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._unexpected(json.dumps(value))
        return value

    def _unexpected(self, data: str) -> DeviceError:
        return DeviceError(
            f"{self.url}: expected a JSON object, it sent {data[:SHOWN_CHARACTERS]!r}", upstream=self.url
        )


def reader_of(response: httpx.Response, handle: Callable[[bytes], bool]) -> Callable[[float | None], Awaitable[bytes]]:
    """Return a function that reads the next part of the body, empty at its end, and raises DeadlineExceeded at a
    deadline. ``handle`` may handle some parts; see `Body.handle_parts`.
    """
    body = response.extensions.get(BODY)
    if isinstance(body, Body) and "content-encoding" not in response.headers:
        body.handle_parts(handle)

        async def read(deadline: float | None) -> bytes:
            try:
                return await body.read(deadline)
            except TimeoutError as error:
                raise too_late() from error

        return read
    parts = response.aiter_bytes()

    async def read_decoded(deadline: float | None) -> bytes:
        while (part := await before(deadline, anext(parts, None))) == b"":
            pass
        return part or b""

    return read_decoded


async def beginning_of(response: httpx.Response, most_bytes: int) -> bytes:
    """The body, or more than ``most_bytes`` of a longer one: a server may send without end, or compressed."""
    parts, size = list[bytes](), 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            break
    return b"".join(parts)


def as_uuid(request_id: str) -> str:
    """The id, or a UUID derived from it if it is not one: llama-cpp-python's server answers all other ids with 400."""
    try:
        UUID(request_id)
    except ValueError:
        return str(uuid5(NAMESPACE_OID, request_id))
    return request_id


def make_upstream(
    url: str, api_key: str | None, ca: Path | None = None, *, any_request_id: bool = False, health: str = MODELS
) -> Upstream:
    """``url`` with or without /v1 at its end, as in OpenAI's clients, or unix:PATH. ``ca``: a PEM file of authorities
    that may have signed its certificate, besides the usual ones. Raises RequestError for an invalid URL or file.
    """
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        if not path:
            raise RequestError(f"upstream {url!r}: has no path; write unix:/run/nearfar/prefill.sock")
        client = client_of(api_key, Transport(trust_env=False, socket_path=path), trust_env=False)
        return Upstream(url, client, any_request_id, health)
    root = url.rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(root)
    except httpx.InvalidURL as error:
        raise RequestError(f"upstream {url!r}: is not a URL ({error}); write http://host:port") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RequestError(f"upstream {url!r}: is not the URL of a server; write http://host:port")
    # A proxy from the environment cannot reach servers on this machine.
    trust_env = parsed.host not in ("localhost", "127.0.0.1", "::1")
    tls = None if ca is None or parsed.scheme == "http" else trusting(ca, trust_env=trust_env)
    client = client_of(api_key, transport_for(trust_env=trust_env, tls=tls), trust_env=trust_env, tls=tls)
    return Upstream(root, client, any_request_id, health)


def client_of(
    api_key: str | None, transport: Transport | None, *, trust_env: bool, tls: ssl.SSLContext | None = None
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        transport=transport,
        verify=True if tls is None else tls,
        timeout=httpx.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        trust_env=trust_env,
    )


async def before(deadline: float | None, awaited: Awaitable[T]) -> T:
    """Wait at most until ``deadline``, a time of `time.monotonic`. Raises DeadlineExceeded."""
    if deadline is None:
        return await awaited
    try:
        async with asyncio.timeout(max(0.0, deadline - monotonic())):
            return await awaited
    except TimeoutError as error:
        raise too_late() from error


def too_late() -> DeadlineExceeded:
    return DeadlineExceeded("the upstream did not answer before the request's deadline; allow it more time")


def reason(error: httpx.HTTPError) -> str:
    """Why a server did not answer, and what to do."""
    if (failure := tls_failure(error)) is not None:
        return failure
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "no connection could be made; check that it is running"
    if isinstance(error, httpx.TimeoutException):
        return f"it sent nothing for {READ_TIMEOUT_SECONDS:.0f} seconds; check that it is running"
    return "the connection broke; check that it is running"
