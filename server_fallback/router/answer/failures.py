"""Failures: what an error of a side means to the answer machine, and what the machine's failure means to the client."""

from __future__ import annotations

from collections.abc import Mapping

from nearfar.compiler.errors import NearfarError, QueueFull, RequestError, Unavailable

from ...schema.route import Side
from .answer_machine import Rules
from .events import Fail, FailureKind

# A server, or a proxy before it, that has too much to do.
OVERLOADED = (429, 503, 529)
# What is wrong with the far side whatever it is asked, so near may well answer.
OF_THE_SERVER: Mapping[object, FailureKind] = {
    "wrong_key": "unauthorized",
    "api_version": "server",
    "unknown_model": "server",
}


def failure_of(side: Side, error: NearfarError, rules: Rules) -> tuple[FailureKind, bool]:
    """The kind of failure, and whether to ask the same again may help before the policy's patience ends."""
    kind, retryable = _failure_of(side, error)
    wait, patience_ms = (
        error.details.get("retry_after_seconds"),
        rules.near_first_token_ms if side == "near" else rules.far_first_token_ms,
    )
    return kind, retryable and not (isinstance(wait, int | float) and wait * 1000 >= patience_ms)


def _failure_of(side: Side, error: NearfarError) -> tuple[FailureKind, bool]:
    status = error.details.get("status")
    if status in (401, 403):
        return "unauthorized", False
    if side == "far" and error.details.get("code") in OF_THE_SERVER:
        return OF_THE_SERVER[error.details.get("code")], False
    if side == "far" and status == 404:
        # It has no such model or route, of which the client knows nothing.
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


def failure_told(fail: Fail, rules: Rules, error: NearfarError | None) -> NearfarError:
    """The last failure as the client sees it."""
    if fail.kind == "timeout" or error is None:
        first = rules.near_first_token_ms if fail.side == "near" else rules.far_first_token_ms
        return Unavailable(
            f"{fail.side}: no token came in time (the policy allows {first} ms for the first, {rules.between_tokens_ms} ms between two); "
            "ask again, or allow it more time",
            code=fail.reason,
        )  # fmt: skip
    return error
