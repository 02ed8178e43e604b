"""The routes' classes: before a handler runs, they identify and admit the caller, and then read the body. The body of a
rejected caller is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.datastructures import Headers

from nearfar.compiler.runtime.errors import Unavailable

from ..schema.common import ErrorResponse
from ..schema.ollama import OllamaError
from ..text.json_structure import JsonStructure
from .config import ApiConfig
from .document import in_json
from .drain import SHUTTING_DOWN
from .errors import ApiError
from .exchange import exchange_of
from .json_body import parse_counted_json, printable, read_body, read_json_body
from .keys import ApiKey, Keys
from .lenient import IGNORED_HEADER, ignored_header, without_unknown
from .service import service_of
from .validation import validation_error

Handler = Callable[..., Coroutine[Any, Any, Response]]
Responses = dict[int | str, dict[str, Any]]
# For the OpenAPI document only; `KeyedRoute` checks the key.
BEARER = Security(HTTPBearer(auto_error=False))
EVERYWHERE: Responses = {
    401: {**in_json(ErrorResponse), "description": "The API key is missing or wrong."},
    403: {**in_json(ErrorResponse), "description": "The API key or the Host header is not allowed to do this."},
    429: {**in_json(ErrorResponse), "description": "Too many requests; Retry-After states when to try again."},
    500: {**in_json(ErrorResponse), "description": "The device failed, or the server has a bug."},
    503: {
        **in_json(ErrorResponse),
        "description": "The server is not ready, or the time limit has passed; Retry-After states when to try again.",
    },
}
WITH_BODY: Responses = {
    **EVERYWHERE,
    400: {**in_json(ErrorResponse), "description": "The request is invalid; param names the parameter."},
    404: {**in_json(ErrorResponse), "description": "The model does not exist."},
    408: {**in_json(ErrorResponse), "description": "The body did not arrive in time."},
    413: {**in_json(ErrorResponse), "description": "The body is too large."},
    415: {**in_json(ErrorResponse), "description": "The Content-Type of the body is not JSON."},
}


def _ollama(responses: Responses) -> Responses:
    return {status: {**each, **in_json(OllamaError)} for status, each in responses.items()}


# Of Ollama's API, whose streams are lines of JSON.
OLLAMA: Responses = {
    **_ollama(WITH_BODY),
    200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}},
}


def with_events(data: str) -> Responses:
    """An answer that may be a stream of events, whose data are described so."""
    event = {
        "type": "object",
        "properties": {"data": {"type": "string", "description": data}},
        "required": ["data"],
    }
    return {200: {"content": {"text/event-stream": {"schema": event}}}}


class KeyedRoute(APIRoute):
    """Checks the API key if the server has keys, counts the request against the limits, and reads the body strictly."""

    admin: ClassVar[bool] = False
    # Whether programs that are not pages may leave out the Content-Type.
    any_type: ClassVar[bool] = False
    # Whether parameters of the query that are not known have no effect, instead of being refused.
    any_query: ClassVar[bool] = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def keyed(request: Request) -> Response:
            service, exchange = service_of(request), exchange_of(request)
            exchange.receive = request.receive
            exchange.set_deadline(request.headers, service.config.request_timeout_seconds)
            exchange.key = self.authorized(service.config, request)
            admission = exchange.admission = await exchange.held.enter_async_context(
                service.limits.admit(exchange.client, exchange.key)
            )
            exchange.answer_headers.update(admission.headers)
            if self.body_field is not None:
                if service.drain.started:
                    raise Unavailable(SHUTTING_DOWN)
                limits = service.config.max_body_bytes, service.config.body_timeout_seconds, admission.body
                if self.any_type and not of_page(request):
                    data = await read_body(request, *limits, JsonStructure())
                else:
                    data = await read_json_body(request, *limits)
                body = await service.parsed(parse_counted_json, data, exchange.client)
                model = self.body_field.field_info.annotation
                if service.config.lenient and isinstance(model, type) and (ignored := without_unknown(model, body)):
                    exchange.answer_headers[IGNORED_HEADER] = ignored_header(ignored)
                request = _ReadRequest(request, body)
            if unknown := self._unknown(request):
                if not service.config.lenient:
                    name = printable(unknown[0])
                    raise ApiError(400, f"Unknown parameter: '{name}'.", "unknown_parameter", name)
                exchange.answer_headers[IGNORED_HEADER] = ignored_header([[name] for name in unknown])
            if repeated := self._repeated(request):
                raise ApiError(400, f"Repeated parameter: '{repeated}'; give it once.", "repeated_parameter", repeated)
            try:
                return await handler(request)
            except RequestValidationError as error:
                # It refers to the frame that raised it, which refers to it and to the request's connection.
                error.__traceback__ = None
                raise validation_error(error.errors(), error.body) from None

        return keyed

    def _unknown(self, request: Request) -> list[str]:
        """The parameters of the query that this route does not have. Those of a route with a body are in the body."""
        known = {each.alias for each in self.dependant.query_params}
        if self.any_query or ("POST" in (self.methods or ()) and not known):
            return []
        return [name for name in request.query_params if name not in known]

    def _repeated(self, request: Request) -> str | None:
        """A parameter of the query with two values, of which one would have no effect. No route takes a list."""
        given = [name for name, _ in request.query_params.multi_items()]
        known = (each.alias for each in self.dependant.query_params)
        return next((name for name in known if given.count(name) > 1), None)

    def authorized(self, config: ApiConfig, request: Request) -> ApiKey | None:
        """Raises ApiError (401, 403)."""
        return authorize(config.keys, presented(request.headers), admin=self.admin)


class AdminRoute(KeyedRoute):
    admin = True


class ListRoute(KeyedRoute):
    """Clients of several APIs ask for the models here, each with parameters of its own: limit, client_version, beta."""

    any_query = True


class OllamaRoute(KeyedRoute):
    """Ollama reads bodies of any Content-Type, and its documentation sends them with curl's own."""

    any_type = True


class StoreRoute(OllamaRoute):
    """Changes the store: with an admin's key, or on a server for this machine alone that has no keys. There, pages
    cannot.
    """

    admin = True

    def authorized(self, config: ApiConfig, request: Request) -> ApiKey | None:
        if config.is_local and not config.keys.keys and not of_page(request):
            return None
        return super().authorized(config, request)


def of_page(request: Request) -> bool:
    """Whether a browser sends the request for a page: it states the page's origin, or where the request comes from."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers


def keyed_router(route_class: type[KeyedRoute] = KeyedRoute) -> APIRouter:
    return APIRouter(route_class=route_class, responses=EVERYWHERE, dependencies=[BEARER])


def post(
    router: APIRouter, path: str, body: type[BaseModel], answer: type[BaseModel], responses: Responses = WITH_BODY
) -> Callable[[Handler], Handler]:
    """Add a route whose handler gets a request's ``body`` as one of this class. Its name is that of the path."""

    def add(handler: Handler) -> Handler:
        handler.__annotations__["body"] = body
        name = path.removeprefix("/v1/").replace("/", "_")
        router.post(path, response_model=answer, responses=responses, name=name)(handler)
        return handler

    return add


def presented(headers: Headers) -> str:
    """The Authorization header. Anthropic's clients may send the key in a header of its own."""
    key = headers.get("x-api-key")
    return headers.get("authorization", "") or ("" if key is None else f"Bearer {key}")


def authorize(keys: Keys, authorization: str, *, admin: bool = False) -> ApiKey | None:
    """The key in an Authorization header; None if the server has no keys. Raises ApiError (401, 403)."""
    if not keys.keys:
        if admin:
            raise ApiError(
                403, "this needs an admin's API key, but the server was started without keys", "admin_key_required"
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
        raise ApiError(401, "this server does not know this API key", "invalid_api_key", headers=challenge)
    if admin and not key.admin:
        raise ApiError(403, "this needs an admin's API key", "admin_key_required")
    return key


class _ReadRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, value: object) -> None:
        # FastAPI reads no JSON of another type.
        headers = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
        scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
        super().__init__(scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Any non-empty value: FastAPI first checks whether there is a body, then reads its JSON."""
        return b"read"

    async def json(self) -> Any:
        return self._value
