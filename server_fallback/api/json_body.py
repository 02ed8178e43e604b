"""Reads a request's body within a size and a time limit, and parses it strictly as JSON.

Python's own parser accepts more than JSON (NaN, duplicate keys, halves of surrogate pairs), and nests until its stack
overflows.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request

from ..text.json_structure import JsonStructure, structure_error
from .errors import ApiError

# Each unknown key gives an error of its own, and building half a million of them takes seconds.
MAX_KEYS = 4096
# A client may not read its answer before it has sent its whole body, so this many more bytes are read and discarded.
MAX_DISCARDED_BYTES = 64 << 20
# Python reads integers of some thousand digits at most.
MAX_LENGTH_DIGITS = 20
# Above it, a float may stand for several integers.
MAX_EXACT = 1 << 53
# Half of a surrogate pair as an escape. Only texts that contain one need the slower check.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
SURROGATE_IN_TEXT = re.compile(SURROGATE.pattern.decode())


async def read_json_body(
    request: Request, max_bytes: int, timeout_seconds: float, hold: Callable[[int], Awaitable[None]] | None = None
) -> bytes:
    """The bytes of a body that is declared as JSON. ``hold`` is awaited with the size of each part before the part is
    stored, and may raise ApiError.

    Raises ApiError: 415 for another content type and a compressed body, 413 over ``max_bytes`` (counted as the bytes
    arrive, whatever Content-Length states), 400 as soon as the structure is too large, 408 for a body that does not
    arrive in time.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another site can send text/plain without a CORS preflight request, but not JSON.
    if content_type != "application/json":
        given = f"is {printable(content_type)!r}" if content_type else "is missing"
        raise ApiError(415, f"the Content-Type {given}; send application/json", "unsupported_content_type")
    return await read_body(request, max_bytes, timeout_seconds, hold, JsonStructure())


async def read_body(
    request: Request,
    max_bytes: int,
    timeout_seconds: float,
    hold: Callable[[int], Awaitable[None]] | None = None,
    structure: JsonStructure | None = None,
) -> bytes:
    """The bytes of a body; ``structure`` is None unless all of it is JSON. Raises the errors of `read_json_body`, but
    not for the content type.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not supported; send the body as it is", "unsupported_content_type")
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _read(request, max_bytes, hold, structure)
    except TimeoutError:
        message = f"the body did not arrive within {timeout_seconds:g} s"
        raise ApiError(408, message, "body_timeout", headers={"Connection": "close"}) from None


def parse_json(body: bytes) -> Any:
    """Raises ApiError (400)."""
    _require_structure(structure_error(body))
    return parse_counted_json(body)


def parse_counted_json(body: bytes) -> Any:
    """The value of a body whose structure was counted while it was read. Raises ApiError (400)."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_number, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError:
        # Python reads integers of some thousand digits at most.
        raise _bad("the body has an integer with too many digits") from None
    if SURROGATE.search(body):
        _check_surrogates(value)
    return value


def check_inner_json(text: str, param: str) -> None:
    """Apply the body's limits to a string of the body that is JSON itself, such as the arguments of a call. A string
    that is not JSON is accepted: its reader checks it. Raises ApiError (400).
    """
    if (wrong := structure_error(text.encode("utf-8", "surrogatepass"))) is not None:
        raise ApiError(400, f"'{param}' {wrong}", "invalid_value", param)
    if not SURROGATE_IN_TEXT.search(text):
        return
    try:
        _check_surrogates(json.loads(text))
    except ApiError as error:
        raise ApiError(400, error.message.replace("the body", f"'{param}'"), "invalid_value", param) from None
    except ValueError:
        return


async def _read(
    request: Request,
    max_bytes: int,
    hold: Callable[[int], Awaitable[None]] | None,
    structure: JsonStructure | None,
) -> bytes:
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
                if structure is not None:
                    # The error is sent at once, and the connection discards what still arrives of the body.
                    _require_structure(structure.error_of(part))
                try:
                    if hold is not None:
                        await hold(len(part))
                    parts.append(part)
                except ApiError as error:
                    refusal = error
                    refusal.headers = {**refusal.headers, "Connection": "close"}
            if refusal is not None:
                parts.clear()
    except ClientDisconnect:
        raise ApiError(499, "the client disconnected before its body had arrived", "client_disconnected") from None
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the body is larger than {max_bytes} bytes, the limit of this server"
    return ApiError(413, message, "body_too_large", headers={"Connection": "close"})


def _require_structure(error: str | None) -> None:
    if error is not None:
        raise _bad(f"the body {error}")


def _bad(message: str) -> ApiError:
    return ApiError(400, message, "invalid_json")


def _no_constant(name: str) -> None:
    raise _bad(f"the body has {name}, which is not valid JSON")


def _number(text: str) -> float:
    """JSON has one kind of numbers, and clients in some languages write each with a fraction: 64.0 is an integer."""
    value = float(text)
    if not math.isfinite(value):
        raise _bad("the body has a number that is too large")
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT else value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _bad(f"an object has {len(pairs)} keys; this server supports at most {MAX_KEYS}")
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ApiError(
            400, f"the key {twice[:100]!r} appears twice in one object", "invalid_json", param=printable(twice)
        )
    return value


def printable(text: str) -> str:
    """The text from a client in a form that an answer can quote: shortened, and without halves of surrogate pairs."""
    return text[:100].encode("utf-8", "replace").decode("utf-8")


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _bad("the body has half of a surrogate pair (\\ud800 to \\udfff) without its other half") from None
