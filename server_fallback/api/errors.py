"""Errors as OpenAI's API answers them: ``{"error": {message, type, param, code}}`` with a status that clients know how to take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nearfar.compiler.errors import (
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
# Characters. Some messages quote a text of the request.
MAX_MESSAGE = 2000


@dataclass(eq=False)
class ApiError(Exception):
    """``kind`` is the error's ``type``."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    kind: str = "invalid_request_error"
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> ErrorResponse:
        message = self.message if len(self.message) <= MAX_MESSAGE else f"{self.message[:MAX_MESSAGE]} ..."
        return ErrorResponse(error=ErrorDetail(message=message, type=self.kind, param=self.param, code=self.code))

    def response(self) -> Response:
        return Response(self.body().model_dump_json(), self.status, dict(self.headers), "application/json")


def api_error(error: BaseException) -> ApiError:
    """The answer to a client. An error that is a bug of ours is not described in it, because its text may hold anything."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NearfarError):
        return _of_ours(error)
    if isinstance(error, HTTPException):
        return _of_http(error)
    if isinstance(error, RecursionError | UnicodeError) or is_panic(error):
        # They come from texts that a library cannot read, such as one nested too deeply or with half of a surrogate pair.
        return ApiError(
            400, "the request has a text that cannot be read; the server's log has this request's id", "unreadable_text"
        )
    return ApiError(
        500, "internal error; the server's log has it under this request's id", "internal_error", kind="server_error"
    )


def is_panic(error: BaseException) -> bool:
    """Whether code in Rust panicked, such as tokenizers. Each library has a class of its own, which derives from BaseException."""
    return type(error).__name__ == "PanicException"


def loading_error(error: NearfarError) -> NearfarError | ApiError:
    """An error of loading a model: the client named the model, so that what is wrong with its files is wrong with the request."""
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
        return ApiError(400, error.message, code or "invalid_value", param)
    if isinstance(error, CheckpointError | BundleError | QuantizationError):
        # A model that was loaded lost its files, or they are wrong. Another server may have them.
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
    """What the router says: no such route, or not with this method."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(
            404,
            "there is nothing at this address; GET /openapi.json lists what there is",
            "unknown_url",
            headers=headers,
        )
    if error.status_code == 405:
        return ApiError(
            405, f"this address takes {headers.get('Allow', 'other methods')}", "method_not_allowed", headers=headers
        )
    return ApiError(error.status_code, str(error.detail), headers=headers)


def retry_after(seconds: object = None) -> dict[str, str]:
    """The header that says after how many seconds to try again, at least 1."""
    given = float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else DEFAULT_RETRY_SECONDS
    return {"Retry-After": str(max(1, math.ceil(given)))}
