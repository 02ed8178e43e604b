"""The routes' classes: before a handler runs, its caller is known, admitted, and its body read; no body is read for who may not ask."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from nearfar.compiler.errors import Unavailable

from ..schema.common import ErrorResponse
from .drain import SHUTTING_DOWN
from .errors import ApiError
from .exchange import exchange_of
from .json_body import read_json
from .keys import ApiKey, Keys
from .lenient import IGNORED_HEADER, ignored_header, without_unknown
from .service import service_of
from .validation import validation_error

# For the OpenAPI document only; `KeyedRoute` is what checks.
BEARER = Security(HTTPBearer(auto_error=False))
EVERYWHERE: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorResponse, "description": "The API key is missing or wrong."},
    403: {"model": ErrorResponse, "description": "The key, or the Host header, may not do this."},
    429: {"model": ErrorResponse, "description": "Too many requests; Retry-After says when to try again."},
    500: {"model": ErrorResponse, "description": "The device failed, or the server has a bug."},
    503: {
        "model": ErrorResponse,
        "description": "Not now, or not in the time allowed; Retry-After says when to try again.",
    },
}
WITH_BODY: dict[int | str, dict[str, Any]] = {
    **EVERYWHERE,
    400: {"model": ErrorResponse, "description": "The request is wrong; param says where."},
    404: {"model": ErrorResponse, "description": "No model has this name."},
    408: {"model": ErrorResponse, "description": "The body did not come in time."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    415: {"model": ErrorResponse, "description": "The body is not JSON by its Content-Type."},
}


class KeyedRoute(APIRoute):
    """Asks for a key where there are keys, counts the request against its limits, and reads the body strictly."""

    admin: ClassVar[bool] = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def keyed(request: Request) -> Response:
            service, exchange = service_of(request), exchange_of(request)
            exchange.set_deadline(request.headers, service.config.request_timeout_seconds)
            exchange.key = authorize(service.config.keys, request.headers.get("authorization", ""), admin=self.admin)
            admission = exchange.admission = exchange.held.enter_context(
                service.limiter.admit(exchange.client, exchange.key)
            )
            exchange.answer_headers.update(admission.headers)
            if self.body_field is not None:
                if service.drain.started:
                    raise Unavailable(SHUTTING_DOWN)
                body = await read_json(
                    request, service.config.max_body_bytes, service.config.body_timeout_seconds, admission.body
                )
                model = self.body_field.field_info.annotation
                if service.config.lenient and isinstance(model, type) and (ignored := without_unknown(model, body)):
                    exchange.answer_headers[IGNORED_HEADER] = ignored_header(ignored)
                request = _ReadRequest(request, body)
            try:
                return await handler(request)
            except RequestValidationError as error:
                raise validation_error(error.errors(), error.body) from None

        return keyed


class AdminRoute(KeyedRoute):
    admin = True


def keyed_router(route_class: type[KeyedRoute] = KeyedRoute) -> APIRouter:
    return APIRouter(route_class=route_class, responses=EVERYWHERE, dependencies=[BEARER])


def authorize(keys: Keys, authorization: str, *, admin: bool = False) -> ApiKey | None:
    """The key of an Authorization header; None where there are no keys. Raises ApiError (401, 403)."""
    if not keys.keys:
        if admin:
            raise ApiError(
                403, "this needs an admin's API key, and the server was started without keys", "admin_key_required"
            )
        return None
    scheme, _, presented = authorization.partition(" ")
    presented = presented.strip()
    challenge = {"WWW-Authenticate": "Bearer"}
    if scheme.lower() != "bearer" or not presented:
        raise ApiError(
            401, "an API key is needed: send 'Authorization: Bearer KEY'", "invalid_api_key", headers=challenge
        )
    key = keys.find(presented)
    if key is None:
        raise ApiError(401, "this API key is not known here", "invalid_api_key", headers=challenge)
    if admin and not key.admin:
        raise ApiError(403, "this needs an admin's API key", "admin_key_required")
    return key


class _ReadRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Anything but nothing: FastAPI asks whether there is a body, then for its JSON."""
        return b"read"

    async def json(self) -> Any:
        return self._value
