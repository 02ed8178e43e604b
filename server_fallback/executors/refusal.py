"""Convert an upstream's error answer, from its status and error object, to one of our errors."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import httpx

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, QueueFull, RequestError, Unavailable

from ..schema.common import NOT_NOW_STATUSES, STATUS_OF_TYPE

# Characters that are shown of an answer that is not JSON.
SHOWN_CHARACTERS = 200
MESSAGE_CHARACTERS = 2000
# A code such as context_length_exceeded is passed on. Text of any other form is not a code.
CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# vLLM's error, with the status 500, for each request after its engine has crashed; the server then ends. The first is
# that of vLLM 0.32 and older, the second that of 0.33. It is OpenAI's text too, who advise to send the request again.
DEAD_ENGINE = ("EngineCore encountered an issue", "The server had an error while processing your request")


def refusal(url: str, response: httpx.Response, text: str) -> NearfarError:
    """The error for an answer whose status is not a success; ``text`` is its body."""
    return by_status(url, response.status_code, error_object(text), retry_after(response))


def streamed_error(url: str, error: dict[str, Any]) -> NearfarError:
    """The error for an error object in the middle of a stream. Some servers use an HTTP status as its code."""
    code = error.get("code")
    if isinstance(code, int):
        return by_status(url, code, error, None)
    # Our own server sends these codes when another server may answer, which the error's type does not show.
    status = 503 if code == "unavailable" else STATUS_OF_TYPE.get(str(error.get("type")), 500)
    return by_status(url, status, error, None)


def by_status(url: str, status: int, error: dict[str, Any], retry_after_seconds: float | None) -> NearfarError:
    message = printable(str(error.get("message") or f"status {status}"))
    hint: dict[str, object] = {"status": status}
    if retry_after_seconds is not None:
        hint["retry_after_seconds"] = retry_after_seconds
    if status in (401, 403):
        # The key belongs to this server: the sender of the request cannot correct it.
        options = (
            "--upstream-api-key-env (serve), --far-api-key-env (gateway, router), --speaker-api-key-env (both) or "
            "--api-key-env (bench)"
        )
        advice = f"set the right one in the variable of {options}"
        return DeviceError(
            f"{url}: the server rejects the configured API key ({message}); {advice}", upstream=url, status=status
        )
    if status == 429:
        return QueueFull(f"{url}: {message}", upstream=url, **hint)
    if status in NOT_NOW_STATUSES or (status == 500 and message.startswith(DEAD_ENGINE)):
        return Unavailable(f"{url}: {message}", upstream=url, **hint)
    if 300 <= status < 400:
        return DeviceError(
            f"{url}: the server answers with a redirect, which is not followed; use the redirect's target instead",
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
    """OpenAI's error object: under "error", or at the top level as some servers send it; any other body becomes the
    message, unless it is an empty object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict) and "message" in error:
            return error
        text = str((error.get("detail", error) if isinstance(error, dict) else error) or "")
    return {"message": text.strip()[:SHOWN_CHARACTERS]}


def retry_after(response: httpx.Response) -> float | None:
    """The value of Retry-After in seconds; the header's date form is not read."""
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def printable(text: str) -> str:
    """The text in a form that can be sent on: at most `MESSAGE_CHARACTERS`, without half of a surrogate pair."""
    return text[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
