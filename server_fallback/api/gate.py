"""Gate: the outermost layer of the app. It gives each request an id and, when the request is over, writes its log line,
counts it and ends its span.

It turns every failure of the inner layers into an answer; no exception leaves the app. A WebSocket counts as one
request for as long as it is open.
"""

from __future__ import annotations

import logging
import re
import time
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..executors.executor import CONFIRM_HEADER
from ..executors.sglang import ROUTING_KEY
from ..log_event import log_event
from ..schema.pages import PREFILL_HEADER
from .addresses import Addresses
from .drain import ClientGone
from .errors import ApiError, api_error, is_panic
from .exchange import Exchange, never_gone
from .log import log_failure
from .service import Service
from .traces import context_headers

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# nginx's status for a client that has closed the connection.
CLIENT_CLOSED = 499
SWITCHING_PROTOCOLS = 101
# Counted and logged as the method of a request that opens a WebSocket.
WEBSOCKET = "WEBSOCKET"
# Monitoring systems request these paths all the time.
QUIET = ("/health", "/health/live", "/health/ready", "/health/startup", "/metrics")


class Gate:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._addresses = Addresses(service.config.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        method = scope.get("method", WEBSOCKET)
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else str(uuid4())
        peer = scope.get("client")
        address = self._addresses.sender(peer[0] if peer else "", headers.getlist("x-forwarded-for"))
        write_error = self._service.error_form(scope["path"])
        exchange = Exchange(request_id, context_headers(headers), address, write_error)
        exchange.confirmed = headers.get(CONFIRM_HEADER)
        exchange.prefill_from = headers.get(PREFILL_HEADER)
        traces = self._service.traces
        span = None
        if traces is not None:
            span, exchange.passed_on = traces.begin(method, headers)
        if (routing_key := headers.get(ROUTING_KEY)) is not None:
            exchange.passed_on[ROUTING_KEY] = routing_key
        scope.setdefault("state", {})["exchange"] = exchange
        status = CLIENT_CLOSED

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                answer = MutableHeaders(scope=message)
                answer["x-request-id"] = exchange.request_id
                answer.update(exchange.answer_headers)
            elif message["type"] == "websocket.accept":
                status = SWITCHING_PROTOCOLS
                message = {
                    **message,
                    "headers": [*message.get("headers", ()), (b"x-request-id", exchange.request_id.encode())],
                }
            elif message["type"] == "websocket.close":
                exchange.log["close_code"] = message.get("code", 1000)
            await send(message)

        try:
            async with exchange.held:
                self._check_host(headers)
                await self._app(scope, receive, named)
        except ClientGone:
            status = CLIENT_CLOSED
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            reported = api_error(error)
            log_failure(exchange, error, reported)
            if status == CLIENT_CLOSED:
                await reported.response(exchange.write_error)(scope, receive, named)
        finally:
            # The connection has the exchange, so each would keep the other until the garbage collector runs.
            exchange.receive = never_gone
            self._note(scope, method, exchange, status, time.monotonic() - exchange.arrived)
            if traces is not None and span is not None:
                traces.end(
                    span, method, _route(scope), status, {"request_id": request_id, **exchange.log}, exchange.steps
                )

    def _check_host(self, headers: Headers) -> None:
        allowed = self._service.config.allowed_hosts
        if not allowed:
            return
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname
        except ValueError:
            host = None
        if host not in allowed:
            raise ApiError(
                403,
                f"this server does not accept this Host header; it accepts {', '.join(allowed)}; add the host with "
                "--allowed-host",
                "host_not_allowed",
            )

    def _note(self, scope: Scope, method: str, exchange: Exchange, status: int, seconds: float) -> None:
        route = _route(scope)
        self._service.metrics.http.labels(route, method, str(status)).inc()
        self._service.ended(exchange, status, seconds)
        if not self._service.config.access_log:
            return
        log_event(
            "request",
            logging.DEBUG if route in QUIET else logging.INFO,
            request_id=exchange.request_id,
            method=method,
            route=route,
            status=status,
            seconds=round(seconds, 4),
            key=exchange.key.name if exchange.key is not None else None,
            address=exchange.address,
            **exchange.log,
            **({"steps_ms": {step.name: step.ms for step, _ in exchange.steps}} if exchange.steps else {}),
        )


def _route(scope: Scope) -> str:
    """The route's pattern. The address itself could be anything, so each one would create a metric of its own."""
    return str(getattr(scope.get("route"), "path", "none"))
