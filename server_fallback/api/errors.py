"""Errors in the form of OpenAI's API: ``{"error": {message, type, param, code}}``, with a status that its clients can
handle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nearfar.compiler.runtime.errors import (
    BundleError,
    CheckpointError,
    DeadlineExceeded,
    NearfarError,
    QuantizationError,
    QueueFull,
    RequestError,
    Unavailable,
)

from ..executors.executor import UnknownModel
from ..schema.common import ErrorDetail, ErrorResponse

DEFAULT_RETRY_SECONDS = 1.0
# Characters. Some messages quote text from the request.
MAX_MESSAGE = 2000


@dataclass(eq=False)
class ApiError(Exception):
    """``kind`` is the error's ``type``, ``more`` are further fields of `ErrorDetail`."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    kind: str = "invalid_request_error"
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> ErrorResponse:
        message = self.message if len(self.message) <= MAX_MESSAGE else f"{self.message[:MAX_MESSAGE]} ..."
        detail = ErrorDetail(message=message, type=self.kind, param=self.param, code=self.code, **self.more)
        return ErrorResponse(error=detail)

    def response(self, write: WriteError) -> Response:
        return Response(write(self), self.status, dict(self.headers), "application/json")


# Writes an error as JSON in the form of one API, whose clients cannot read another.
WriteError = Callable[[ApiError], bytes]


def openai_error(error: ApiError) -> bytes:
    return error.body().model_dump_json().encode()


def openai_message(error: ApiError) -> str:
    return error.body().error.message


def api_error(error: BaseException) -> ApiError:
    """The error for the client. It does not describe an error that is a bug of this server, because that message could
    contain anything.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NearfarError):
        return _of_ours(error)
    if isinstance(error, HTTPException):
        return _of_http(error)
    if isinstance(error, RecursionError | UnicodeError) or is_panic(error):
        # These errors come from text that a library cannot read, such as JSON nested too deeply or half of a surrogate
        # pair.
        return ApiError(
            400,
            "the request contains text that cannot be read; see the server's log under this request's id",
            "unreadable_text",
        )
    return ApiError(
        500, "internal error; see the server's log under this request's id", "internal_error", kind="server_error"
    )


def is_panic(error: BaseException) -> bool:
    """Whether the error is a panic in a Rust library such as tokenizers. Each library has its own exception class,
    derived from BaseException.
    """
    return type(error).__name__ == "PanicException"


def loading_error(error: NearfarError) -> NearfarError | ApiError:
    """The error for a failed load. The client named the model, so an error in its files counts as an error in the
    request.
    """
    if isinstance(error, CheckpointError | BundleError | QuantizationError):
        return ApiError(400, error.message, error.code)
    return error


def _of_ours(error: NearfarError) -> ApiError:
    param = error.details.get("param")
    param = param if isinstance(param, str) else None
    code = error.details.get("code")
    code = code if isinstance(code, str) else None
    if isinstance(error, UnknownModel):
        return ApiError(404, error.message, error.code, param or "model")
    if isinstance(error, RequestError):
        more = {name: error.details[name] for name in ("confirm", "masked") if name in error.details}
        return ApiError(400, error.message, code or "invalid_value", param, more=more)
    if isinstance(error, CheckpointError | BundleError | QuantizationError):
        # The files of a loaded model are missing or invalid. Another server may have them.
        return ApiError(503, error.message, code or error.code, param, "server_error", retry_after())
    if isinstance(error, QueueFull):
        return ApiError(
            429,
            error.message,
            error.code,
            param,
            "rate_limit_error",
            retry_after(error.details.get("retry_after_seconds")),
        )
    if isinstance(error, DeadlineExceeded):
        return ApiError(
            503,
            error.message,
            error.code,
            param,
            "timeout_error",
            retry_after(error.details.get("retry_after_seconds")),
        )
    if isinstance(error, Unavailable):
        return ApiError(
            503,
            error.message,
            code or error.code,
            param,
            "server_error",
            retry_after(error.details.get("retry_after_seconds")),
        )
    return ApiError(500, error.message, error.code, param, "server_error")


def _of_http(error: HTTPException) -> ApiError:
    """The router's error: the route does not exist, or does not support this method."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(
            404,
            "this address does not exist; GET /openapi.json lists the addresses that do",
            "unknown_url",
            headers=headers,
        )
    if error.status_code == 405:
        return ApiError(
            405,
            f"this address does not support this method; use {headers.get('Allow', 'another one')}",
            "method_not_allowed",
            headers=headers,
        )
    return ApiError(error.status_code, str(error.detail), headers=headers)


def retry_after(seconds: object = None) -> dict[str, str]:
    """The Retry-After header: the number of seconds after which to try again, at least 1."""
    given = float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else DEFAULT_RETRY_SECONDS
    return {"Retry-After": str(max(1, math.ceil(given)))}
