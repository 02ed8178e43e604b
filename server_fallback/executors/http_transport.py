"""Transport: HTTP/1.1 for httpx, with a C parser, for long answers in many small pieces.

httpx's own transport takes about 100 microseconds of CPU to pass on one piece of a body; this one takes about 10. It
keeps idle connections and reuses them, and it reads no further ahead of its reader than `MAX_BUFFERED_BYTES`. It knows
neither proxies nor HTTP/2: `transport_for` selects httpx's own if the environment names a proxy.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import cast
from urllib.request import getproxies

import httpx
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.runtime.given_file import read_given

MAX_IDLE_CONNECTIONS = 64
MAX_BUFFERED_BYTES = 256 << 10

# The response extension with its `Body`, because httpx's own ways of reading it take longer than everything else.
BODY = "nearfar.body"

# What to do about certificates that are refused, by OpenSSL's codes (X509_V_ERR_*): if they are not valid yet or any
# more, and if they are for another name or address. Another authority does not help.
REFUSED = {
    9: "compare the clocks of both machines",
    10: "renew it",
    62: "write a name that it has",
    64: "write an address that it has",
}

# Scheme, host and port.
Origin = tuple[str, str, int]


def transport_for(*, trust_env: bool, tls: ssl.SSLContext | None = None) -> Transport | None:
    """None if httpx's own transport is needed, because a proxy may be configured."""
    return None if trust_env and getproxies() else Transport(trust_env=trust_env, tls=tls)


def trusting(ca: Path, *, trust_env: bool = True) -> ssl.SSLContext:
    """The context of a client that accepts the authorities in a PEM file, and the usual ones. Raises RequestError."""
    context = httpx.create_ssl_context(trust_env=trust_env)
    try:
        read_given(ca)
        context.load_verify_locations(ca)
    except OSError as error:
        reason = getattr(error, "reason", None) or reason_of(error)
        raise RequestError(f"--tls-ca {ca}: {reason}; give the certificates of authorities, in PEM") from error
    return context


def tls_failure(error: BaseException) -> str | None:
    """Why a connection with TLS could not be made, and what to do. None if something else failed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__
    match cause:
        case None:
            return None
        case ssl.SSLCertVerificationError(verify_code=code, verify_message=message):
            advice = REFUSED.get(code, "give the certificate of the authority that signed it: --tls-ca FILE")
            return f"its certificate is not accepted ({message.rstrip('.')}); {advice}"
        case _:
            reason = (getattr(cause, "reason", None) or "TLS").replace("_", " ").lower()
            return f"no connection with TLS could be made ({reason}); if it has no certificate, write http://"


class Transport(httpx.AsyncBaseTransport):
    """``trust_env``: the environment may name the file of trusted certificates (SSL_CERT_FILE), unless ``tls`` states
    what is trusted. ``socket_path``: all connections are to this Unix socket.
    """

    def __init__(self, *, trust_env: bool, socket_path: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._trust_env, self._socket_path = trust_env, socket_path
        self._tls = tls
        self._idle: dict[Origin, list[Connection]] = {}
        self._all: set[Connection] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return when the headers of the answer have arrived. Raises httpx's errors."""
        timeouts = request.extensions.get("timeout", {})
        body = await request.aread()
        connection = await self._connection(origin_of(request.url), timeouts.get("connect"))
        try:
            connection.send(request, body, timeouts.get("read"))
            await connection.head()
        except BaseException:
            connection.close()
            raise
        body_stream = Body(connection)
        return httpx.Response(
            connection.status, headers=connection.headers, stream=body_stream, extensions={BODY: body_stream}
        )

    async def aclose(self) -> None:
        """End all connections. Current readers receive an error."""
        for connection in list(self._all):
            connection.close()

    async def _connection(self, origin: Origin, timeout: float | None) -> Connection:
        idle = self._idle.get(origin)
        if idle:
            return idle.pop()
        scheme, host, port = origin
        if scheme == "https" and self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=self._trust_env)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                if self._socket_path is not None:
                    _, connection = await loop.create_unix_connection(
                        lambda: Connection(self, origin), self._socket_path
                    )
                else:
                    _, connection = await loop.create_connection(
                        lambda: Connection(self, origin), host, port, ssl=self._tls if scheme == "https" else None
                    )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection was made in time") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        self._all.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        """Keep a connection for a later request, if there is room for it."""
        if sum(map(len, self._idle.values())) >= MAX_IDLE_CONNECTIONS:
            connection.close()
        else:
            self._idle.setdefault(connection.origin, []).append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._all.discard(connection)
        if connection in (idle := self._idle.get(connection.origin, [])):
            idle.remove(connection)


class Body(httpx.AsyncByteStream):
    """The body of an answer: everything that has arrived since the last read, at each read."""

    def __init__(self, connection: Connection) -> None:
        # None once it is closed. httpx's answer refers to itself and to this body, until the garbage collector runs.
        self._connection: Connection | None = connection

    def handle_parts(self, handle: Callable[[bytes], bool]) -> None:
        """Call ``handle`` with each part that arrives while the reader waits for it in `read`, and do not return the
        part if ``handle`` returns True.
        """
        self._open_connection().handle = handle

    async def read(self, deadline: float | None) -> bytes:
        """The next part; empty at the end. ``deadline`` is a time of `time.monotonic`; None for none. Raises httpx's
        errors, and TimeoutError at the deadline.
        """
        return await self._open_connection().read(deadline)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self.read(None):
            yield part

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.done()

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise httpx.StreamClosed
        return self._connection


class Connection(asyncio.Protocol):
    """One connection, on which one request at a time is under way."""

    def __init__(self, owner: Transport, origin: Origin) -> None:
        self._owner, self.origin = owner, origin
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        # Makes the error that each read raises. One that was kept would keep its readers, and they this connection.
        self._failure: Callable[[], httpx.TransportError] | None = None
        self._waiter: asyncio.Future[None] | None = None
        # One timer for all reads of an answer, because starting a timer for each would take longer than reading.
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._read_timeout: float | None = None
        self._deadline: float | None = None
        self.status, self.headers = 0, list[tuple[bytes, bytes]]()
        self._parts = list[bytes]()
        # Handles parts of the answer that is being read; see `Body.handle_parts`.
        self.handle: Callable[[bytes], bool] | None = None
        # None once the connection has ended.
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # State of the answer: its headers and its end have arrived, it ends with the connection, another request may
        # follow.
        self._has_head = self._is_complete = self._ends_with_connection = self._keeps_alive = False
        self._is_paused = False

    # --- called by the transport and the reader of the body ---

    def send(self, request: httpx.Request, body: bytes, read_timeout: float | None) -> None:
        """Send a request whose answer is read next."""
        self._begin_answer()
        self._read_timeout = read_timeout
        target = request.url.raw_path
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), target)]
        lines += [b"%s: %s" % header for header in request.headers.raw]
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\r\n".join([*lines, b"", body]))

    async def head(self) -> None:
        """Wait for the status and the headers."""
        while not self._has_head:
            await self._wait()

    async def read(self, deadline: float | None) -> bytes:
        """As `Body.read`."""
        while True:
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError
            if self._parts or self._is_complete:
                break
            await self._wait(deadline)
        part = b"".join(self._parts)
        self._parts.clear()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return part

    def done(self) -> None:
        """The answer will not be read any further. A connection with an incomplete answer is closed."""
        self._stop_timer()
        if self._is_complete and self._keeps_alive and self._failure is None:
            self._parts.clear()
            self._owner.keep(self)
        else:
            self.close()

    def close(self) -> None:
        self._stop_timer()
        self._fail(httpx.ReadError, "the connection was closed")
        self._owner.forget(self)
        if self._transport is not None:
            self._transport.abort()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError, f"the answer is not HTTP/1.1: {error}")
            self.close()
            return
        if self._is_handled():
            return
        if self._parts and not self._is_paused and sum(map(len, self._parts)) > MAX_BUFFERED_BYTES:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and self._ends_with_connection and exc is None:
            self._is_complete, self._keeps_alive = True, False
        self._fail(httpx.RemoteProtocolError, "the connection ended before the answer did")
        self._owner.forget(self)
        self._wake()
        # It refers to this connection, which would be kept with its TLS buffers until the garbage collector runs.
        self._parser = None

    # --- called by the parser, which also calls `_parts.append` ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:
            # The answer itself follows.
            self.headers.clear()
            return
        names = {name.lower() for name, _ in self.headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._has_head = True

    def on_message_complete(self) -> None:
        if self._has_head and self._parser is not None:
            self._is_complete, self._keeps_alive = True, self._parser.should_keep_alive()

    def _is_handled(self) -> bool:
        """Let ``handle`` handle what has arrived, if it can. The end of the answer is for the reader."""
        waiter, parts = self._waiter, self._parts
        if self.handle is None or waiter is None or not parts or self._is_complete or waiter.done():
            return False
        try:
            if not self.handle(parts[0] if len(parts) == 1 else b"".join(parts)):
                return False
        except Exception as error:
            # The reader raises it.
            waiter.set_exception(error)
            return True
        parts.clear()
        self._waits_since = monotonic()
        return True

    def _begin_answer(self) -> None:
        self.handle = None
        self.status, self.headers, self._parts = 0, [], []
        # A bound method of the list itself, so none of our code runs for a piece.
        self.on_body = self._parts.append
        self._has_head = self._is_complete = self._ends_with_connection = self._keeps_alive = False
        self._is_paused = False
        if self._parser is not None:
            self._parser = HttpResponseParser(self)

    async def _wait(self, deadline: float | None = None) -> None:
        """Return when something has arrived, or the deadline has passed. Raises httpx's errors."""
        if self._failure is not None:
            raise self._failure()
        self._waiter, self._waits_since = self._loop.create_future(), monotonic()
        if self._timer is None or deadline != self._deadline:
            self._deadline = deadline
            self._stop_timer()
            self._check_time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check_time(self) -> None:
        """End the wait if it has taken too long, or check again at the next time at which it may have."""
        now = monotonic()
        # A reader whose part has arrived does not wait any more, even if the event loop has not run it yet.
        since = self._waits_since if self._waiter is not None and not self._waiter.done() else now
        times = [] if self._read_timeout is None else [since + self._read_timeout]
        if times and times[0] <= now:
            self._timer = None
            self._fail(httpx.ReadTimeout, "nothing arrived in time")
            return
        if self._deadline is not None:
            if self._deadline <= now:
                self._timer = None
                self._wake()
                return
            times.append(self._deadline)
        self._timer = self._loop.call_later(min(times) - now, self._check_time) if times else None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, kind: type[httpx.TransportError], message: str) -> None:
        """Keep the first failure for the next read."""
        self._failure = self._failure or partial(kind, message)
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def origin_of(url: httpx.URL) -> Origin:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)
