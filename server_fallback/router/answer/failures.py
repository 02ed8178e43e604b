"""Failures: what an error of a side means to the answer machine, and which error the client gets in the end."""

from __future__ import annotations

from collections.abc import Mapping

from nearfar.compiler.runtime.errors import NearfarError, QueueFull, RequestError, Unavailable

from ...schema.route import Side
from ..decision.policy import Timeouts
from .answer_machine import Effect

# The server, or a proxy in front of it, is overloaded.
OVERLOADED = (429, 503, 529)
# Errors that every request to the far side would get, so near may well answer.
SERVER_FAULTS: Mapping[object, str] = {
    "wrong_key": "unauthorized",
    "api_version": "server",
    "unknown_model": "server",
}


def failure_of(side: Side, error: NearfarError, timeouts: Timeouts) -> tuple[str, bool]:
    """The kind of failure, and whether a retry may succeed within the time limits of the policy."""
    kind, retryable = _failure_of(side, error)
    wait, limit_ms = (
        error.details.get("retry_after_seconds"),
        timeouts.near_first_token_ms if side == "near" else timeouts.far_first_token_ms,
    )
    return kind, retryable and not (isinstance(wait, int | float) and wait * 1000 >= limit_ms)


def _failure_of(side: Side, error: NearfarError) -> tuple[str, bool]:
    status = error.details.get("status")
    if status in (401, 403):
        return "unauthorized", False
    if side == "far" and error.details.get("code") in SERVER_FAULTS:
        return SERVER_FAULTS[error.details.get("code")], False
    if side == "far" and status == 404:
        # The server does not have this model or route. The client did not choose them, so the request is not to blame.
        return "server", False
    if isinstance(error, RequestError):
        return "request", False
    if isinstance(error, QueueFull) or status in OVERLOADED:
        return "overloaded", True
    if side == "near":
        return ("overloaded", True) if isinstance(error, Unavailable) else ("device", False)
    if isinstance(error, Unavailable):
        return ("connection", True) if status is None else ("server", True)
    return "server", False


def client_error(fail: Effect, timeouts: Timeouts, error: NearfarError | None) -> NearfarError:
    """The error that the client gets for the last failure."""
    if fail["kind"] == "timeout" or error is None:
        first = timeouts.near_first_token_ms if fail["side"] == "near" else timeouts.far_first_token_ms
        return Unavailable(
            f"{fail['side']}: no token came in time (the policy allows {first} ms for the first, "
            f"{timeouts.between_tokens_ms} ms between two); try again, or allow more time",
            code=fail["reason"],
        )
    return error
