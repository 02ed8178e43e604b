"""Bodies: bytes flow in from the connection, within a size and a time; a JSON value flows out that is exactly what was sent.

Python's parser alone takes more than JSON (NaN, the last of two equal keys, halves of surrogate pairs), and nests until its stack ends.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request

from .errors import ApiError

# Deeper than any schema that a person writes, and far from where Python's own recursion ends.
MAX_DEPTH = 100
# Each unknown key is an error of its own, and half a million of them take seconds to write.
MAX_KEYS = 4096
# A client that still sends may not read its answer before it has sent all: so much more is taken from it and thrown away.
MAX_DISCARDED_BYTES = 64 << 20
# Larger bodies are parsed on a thread, which lets other requests run between the parts of the work.
INLINE_BYTES = 64 << 10
# Python reads integers of some thousand digits at most.
MAX_LENGTH_DIGITS = 20
# A half of a surrogate pair as an escape; only texts with one need the slower look.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
SURROGATE_IN_TEXT = re.compile(SURROGATE.pattern.decode())


async def read_json(
    request: Request, max_bytes: int, timeout_seconds: float, hold: Callable[[int], None] = lambda _: None
) -> Any:
    """``hold`` is called with the size of each part before it is kept, and may raise ApiError.

    Raises ApiError: 415 for another content type, 413 over ``max_bytes`` (counted as they come, whatever Content-Length says), 408 for a
    body that does not come, 400 for what is not JSON."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another site can send text/plain here without asking; JSON it cannot.
    if content_type != "application/json":
        given = f"is {printable(content_type)!r}" if content_type else "is missing"
        raise ApiError(415, f"the Content-Type {given}; send application/json", "unsupported_content_type")
    try:
        async with asyncio.timeout(timeout_seconds):
            body = await _read(request, max_bytes, hold)
    except TimeoutError:
        message = f"the body did not come within {timeout_seconds:g} s"
        raise ApiError(408, message, "body_timeout", headers={"Connection": "close"}) from None
    return await asyncio.to_thread(parse_json, body) if len(body) > INLINE_BYTES else parse_json(body)


def parse_json(body: bytes) -> Any:
    """Raises ApiError (400)."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _bad(f"the body nests deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        # Python reads integers of some thousand digits at most.
        raise _bad("the body has an integer of too many digits") from None
    _check_depth(value)
    if SURROGATE.search(body):
        _check_surrogates(value)
    return value


def check_inner_json(text: str, param: str) -> None:
    """A text of the body that is JSON itself, such as the arguments of a call, has the limits of the body. Other texts are left to its
    reader. Raises ApiError (400)."""
    if text.count("[") + text.count("{") <= MAX_DEPTH and not SURROGATE_IN_TEXT.search(text):
        return
    try:
        value = json.loads(text)
        _check_depth(value)
        _check_surrogates(value)
    except RecursionError:
        raise ApiError(400, f"'{param}' nests deeper than {MAX_DEPTH} levels", "invalid_value", param) from None
    except ApiError as error:
        raise ApiError(400, error.message.replace("the body", f"'{param}'"), "invalid_value", param) from None
    except ValueError:
        return


async def _read(request: Request, max_bytes: int, hold: Callable[[int], None]) -> bytes:
    declared = request.headers.get("content-length", "")
    refusal: ApiError | None = None
    if declared.isascii() and declared.isdigit() and len(declared) < MAX_LENGTH_DIGITS and int(declared) > max_bytes:
        refusal = _too_large(max_bytes)
        if int(declared) > MAX_DISCARDED_BYTES or "expect" in request.headers:
            raise refusal
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_DISCARDED_BYTES:
                raise refusal or _too_large(max_bytes)
            if refusal is None and size > max_bytes:
                refusal = _too_large(max_bytes)
            if refusal is None:
                try:
                    hold(len(part))
                    parts.append(part)
                except ApiError as error:
                    refusal = error
                    refusal.headers = {**refusal.headers, "Connection": "close"}
            if refusal is not None:
                parts.clear()
    except ClientDisconnect:
        raise ApiError(499, "the client went away before its body had come", "client_disconnected") from None
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the body is larger than {max_bytes} bytes, the most that this server takes"
    return ApiError(413, message, "body_too_large", headers={"Connection": "close"})


def _bad(message: str) -> ApiError:
    return ApiError(400, message, "invalid_json")


def _no_constant(name: str) -> None:
    raise _bad(f"the body has {name}, which JSON has not")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _bad("the body has a number that is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _bad(f"an object has {len(pairs)} keys; this server takes {MAX_KEYS}")
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ApiError(
            400, f"the key {twice[:100]!r} comes twice in one object", "invalid_json", param=printable(twice)
        )
    return value


def printable(text: str) -> str:
    """Part of a text from outside, as it can be put into an answer: short, and without halves of surrogate pairs."""
    return text[:100].encode("utf-8", "replace").decode("utf-8")


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        children: list[object] = []
        for parent in level:
            inner = parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ()
            children += [child for child in inner if isinstance(child, dict | list)]
        if not children:
            return
        level = children
    raise _bad(f"the body nests deeper than {MAX_DEPTH} levels")


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _bad(
            "the body has half of a surrogate pair (\\ud800 to \\udfff) that its other half does not follow"
        ) from None
