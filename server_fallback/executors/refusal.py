"""What an upstream's refusal means: its status and error object -> one of our errors."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import httpx

from nearfar.compiler.errors import DeviceError, NearfarError, QueueFull, RequestError, Unavailable

# Of an answer that is no JSON, so much is shown.
SHOWN_CHARACTERS = 200
MESSAGE_CHARACTERS = 2000
# A code such as context_length_exceeded is passed on; anything else is not a code.
CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The upstream, or a proxy before it, is not there; a 500 is a fault that the same request may well meet again elsewhere.
STATUS_OF_TYPE = {"invalid_request_error": 400, "rate_limit_error": 429, "timeout_error": 503}
NOT_THERE = {408, 502, 503, 504, 529}


def refusal(url: str, response: httpx.Response, text: str) -> NearfarError:
    """For an answer whose status is no success; ``text`` is its body."""
    return by_status(url, response.status_code, error_object(text), retry_after(response))


def streamed_error(url: str, error: dict[str, Any]) -> NearfarError:
    """For an error in the middle of a stream: OpenAI's object, whose code some servers give as an HTTP status."""
    code = error.get("code")
    if isinstance(code, int):
        return by_status(url, code, error, None)
    # Ours ends so where another server may answer, which its type does not tell.
    status = 503 if code == "unavailable" else STATUS_OF_TYPE.get(str(error.get("type")), 500)
    return by_status(url, status, error, None)


def by_status(url: str, status: int, error: dict[str, Any], retry_after_seconds: float | None) -> NearfarError:
    message = printable(str(error.get("message") or f"status {status}"))
    hint: dict[str, object] = {"status": status}
    if retry_after_seconds is not None:
        hint["retry_after_seconds"] = retry_after_seconds
    if status in (401, 403):
        # The key is ours: whoever sent the request can do nothing about it.
        advice = "set the right one in the variable of --upstream-api-key-env (serve) or --api-key-env (bench)"
        return DeviceError(
            f"{url}: refuses the API key that it was sent ({message}); {advice}", upstream=url, status=status
        )
    if status == 429:
        return QueueFull(f"{url}: {message}", upstream=url, **hint)
    if status in NOT_THERE:
        return Unavailable(f"{url}: {message}", upstream=url, **hint)
    if 300 <= status < 400:
        return DeviceError(
            f"{url}: answers with a redirect, which is not followed; give its target instead",
            upstream=url,
            status=status,
        )
    if 400 <= status < 500:
        param = error.get("param")
        code = error.get("code")
        details = {"param": printable(param)} if isinstance(param, str) else {}
        if isinstance(code, str) and CODE.fullmatch(code):
            details["code"] = code
        return RequestError(message, status=status, **details)
    return DeviceError(f"{url}: {message}", upstream=url, status=status)


def error_object(text: str) -> dict[str, Any]:
    """OpenAI's error object: under "error", or alone as some servers send it; what else there is becomes the message."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict) and "message" in error:
            return error
        text = str(error.get("detail", error) if isinstance(error, dict) else error)
    return {"message": text.strip()[:SHOWN_CHARACTERS]}


def retry_after(response: httpx.Response) -> float | None:
    """Of the header's two forms, the seconds."""
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def printable(text: str) -> str:
    """The text as it can be sent on: at most `MESSAGE_CHARACTERS`, without half a surrogate pair."""
    return text[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
